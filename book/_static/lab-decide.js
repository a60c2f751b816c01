// The decision page: the formulas of labkernels/model/closed_form.py and the checks of labkernels/model/advisor.py, in the browser.
(() => {
  const MECHANISMS = {};  // name: what it is, as labkernels/mechanisms.py says; from the page, in order of preference
  const QUEUED = { hbm: ["latency", "bandwidth", "box rows", "DSM egress"], l2: ["latency", "bandwidth", "SM ingress", "DSM egress"], computed: ["latency", "bandwidth", "DSM egress"] };
  const VECTOR_BYTES = 16, ALLOCATED = 256, SECTOR_BYTES = 32, SETS = 3, MOST_REGISTERS = 200, NO_DIFFERENCE = 1.015, SAME_FORM = 1.005;
  const WARPS = [1, 2, 4], SMALL_TILE_BYTES = 8 * 1024;
  const SHARED_PER_CTA = 227 * 1024, SHARED_PER_SM = 228 * 1024;

  class Refused extends Error {}

  const gcd = (a, b) => (b ? gcd(b, a % b) : a);
  const lowBit = (value) => gcd(value, 2 ** 40);
  const roundUp = (value, unit) => Math.ceil(value / unit) * unit;
  const wayOf = (mechanism, load, share) => {
    const moves = MECHANISMS[mechanism];
    if (!moves.touches_global) return mechanism;
    if (load.source === "computed" && moves.crosses_ctas) return "round trip";
    if (moves.by_threads) return `${mechanism} ${load.pipeline}`;
    if (moves.crosses_ctas) return `${mechanism} ${share}`;
    return load.fan_out === 1 || load.pace === "apart" ? "tma" : "tma in step";
  };
  const sharesOf = (mechanism, load) => {
    const moves = MECHANISMS[mechanism];
    if (!moves.touches_global || load.source === "computed") return load.tile_bytes % (VECTOR_BYTES * load.fan_out) === 0 ? ["slices", "leader"] : ["leader"];
    if (load.fan_out === 1 || moves.by_threads) return [""];
    if (!moves.crosses_ctas) return ["everyone", "alone"];
    return load.warps === 1 ? ["slices", "leader"] : ["leader"];
  };
  const formOf = (load) =>
    load.pipeline === "specialized" ? `${load.warps} + ${load.warps} warps` : load.barriers === 1 ? "multistage" : "multistage, two barriers";
  function formsOf(mechanism, load, slots) {
    const moves = MECHANISMS[mechanism], found = [];
    if (moves.by_threads && moves.touches_global) {
      const staged = { ...load, pipeline: "multistage" };
      if (moves.through_registers) return [{ ...staged, tiles_in_flight: 1 }];
      if (slots > 1) found.push({ ...staged, tiles_in_flight: slots - 1 });
      found.push({ ...staged, tiles_in_flight: slots, barriers: 2 });
    }
    const inTurns = moves.touches_global && load.source !== "computed" && !load.lookups;
    for (const warps of inTurns && (moves.crosses_ctas || load.tile_bytes <= SMALL_TILE_BYTES) ? WARPS : [1])
      if (slots % warps === 0) found.push({ ...load, warps, tiles_in_flight: slots, threads: moves.by_threads ? 32 : load.threads });
    return found;
  }
  const smsOf = (load, of, share) =>
    share === "alone" ? Math.floor(of.gpu.sms_at_fan_out_1 / load.fan_out) * load.fan_out : of.gpu[`sms_at_fan_out_${load.fan_out}`];

  function forwarded(mechanism, load, of, share) {
    const moves = MECHANISMS[mechanism], way = of[wayOf(mechanism, load, share)];
    const tile = load.tile_bytes, others = load.fan_out - 1, atOnce = load.ctas_per_sm;
    const own = share === "slices" ? tile / load.fan_out : tile;
    const sms = smsOf(load, of, "");
    const peers = share === "slices" || moves.pushes ? others : 1;
    const found = { issue: way.handshake_cycles + way.peer_cycles * peers };
    if (load.source === "computed" && moves.source !== "cluster") found.issue += own / way.make_bytes_per_cycle;
    let roundTrip;
    if (!moves.touches_global) {
      const alone = share === "leader" || (moves.pushes && others === 1);
      found["DSM egress"] = (own * others * atOnce) / (alone ? of.dsm.outbox_bytes_per_cycle : way.crossing_bytes_per_cycle);
      roundTrip = found["DSM egress"] / atOnce;
      if (load.source !== "computed") {
        roundTrip += way[`latency_${load.source}_cycles`] + own / way.turn_bytes_per_cycle;
        found.bandwidth = (tile * atOnce * sms) / load.fan_out / of.gpu[`${load.source}_bytes_per_cycle`];
        found["box rows"] = (own / load.row_bytes) * atOnce * of.tma.row_cycles;
      }
    } else {
      roundTrip = way.latency_l2_cycles + tile / way.turn_bytes_per_cycle;
      found.bandwidth = (tile * atOnce * sms) / load.fan_out / way.store_bytes_per_cycle;
      found["box rows"] = (tile / load.row_bytes) * atOnce * of.tma.row_cycles;
    }
    found.latency = roundTrip / load.tiles_in_flight;
    found["SM ingress"] = (tile * atOnce) / of.gpu.ingest_bytes_per_cycle;
    if (load.compute_cycles) found.compute = load.compute_cycles;
    return found;
  }

  function terms(mechanism, load, of, share) {
    const moves = MECHANISMS[mechanism];
    if (!moves.touches_global || load.source === "computed") return forwarded(mechanism, load, of, share);
    const wayName = wayOf(mechanism, load, share), way = of[wayName], tile = load.tile_bytes;
    const flight = load.tiles_in_flight;
    const sms = smsOf(load, of, share);
    const inStep = load.fan_out > 1 && load.source === "l2" && wayName !== "tma";
    let roundTrip = of.gpu[`latency_${load.source}_cycles`] + way.overhead_cycles + tile / (inStep ? way : of.gpu).port_bytes_per_cycle;
    let issue = moves.through_registers ? 0 : way.handshake_cycles / load.warps;
    if (moves.by_threads) {
      const each = load.lookups ? of.threads.piece_cycles : of.threads.vector_cycles;
      const vectors = (each * tile) / load.copy_bytes / load.threads;
      if (!moves.through_registers) {
        const together = load.threads / 32 - (load.pipeline === "specialized" ? 1 : 0);
        const synchronized = of.threads.warp_cycles * together + of.threads.barrier_cycles * (load.barriers - 1);
        roundTrip += synchronized;
        issue += synchronized;
      }
      issue = Math.max(issue + vectors / load.warps, ((of.threads.slot_cycles * tile) / load.copy_bytes / 32) * load.ctas_per_sm);
      roundTrip += vectors;
    } else {
      let vectors = of.tma.copy_cycles * (load.copies - 1);
      if (load.lookups) vectors += of[mechanism].lookup_cycles * load.lookups;
      issue += vectors / load.issuers;
    }
    if (moves.crosses_ctas) {
      const each = share === "slices" ? (way.peer_cycles * load.fan_out) / load.warps : way.serial_cycles;
      issue = Math.max(issue + each, of["tma in step"].handshake_cycles / load.warps);
    }
    let onceFor = load.fan_out;
    if (wayName === "tma" && load.source === "l2") onceFor = 1;
    else if (moves.takes_tensor_map && !moves.crosses_ctas && inStep) onceFor = Math.min(onceFor, 1 + (way.merged_per_64_kib * tile * flight) / 65536);
    const rowsLose = load.source === "hbm" && !load.is_dense && moves.by_threads && load.row_bytes < 128;
    const efficiency = rowsLose
      ? of.threads.short_row_share_at_16 * (load.row_bytes / 16) ** of.threads.short_row_exponent
      : 1;
    const asked = tile * load.ctas_per_sm * sms, kept = efficiency * (load.source === "hbm" ? load.used_share : load.l2_share);
    const memory = asked / onceFor / of.gpu[`${load.source}_bytes_per_cycle`] / kept;
    const found = {
      latency: roundTrip / flight,
      issue,
      bandwidth: wayName === "tma" && load.fan_out > 1 ? Math.max(memory, asked / of.gpu.l2_bytes_per_cycle) : memory,
      "SM ingress": (tile * load.ctas_per_sm) / of.gpu.ingest_bytes_per_cycle,
    };
    if (moves.takes_tensor_map) found["box rows"] = (tile / load.row_bytes) * load.ctas_per_sm * of.tma.row_cycles;
    if (load.compute_cycles) found.compute = load.compute_cycles;
    return found;
  }

  function sum(parts, exponent) {
    const largest = Math.max(...parts);
    return largest * parts.reduce((total, part) => total + (part / largest) ** exponent, 0) ** (1 / exponent);
  }

  function predict(mechanism, load, of, share = "") {
    const moves = MECHANISMS[mechanism], possible = sharesOf(mechanism, load);
    if (!share && possible[0]) return possible.map((one) => predict(mechanism, load, of, one)).reduce((a, b) => (b.gbps > a.gbps ? b : a));
    const found = terms(mechanism, load, of, share), queued = QUEUED[load.source];
    const [waiting, others] = [true, false].map((is) =>
      Object.keys(found).filter((name) => queued.includes(name) === is).map((name) => found[name]));
    const queue = load.source === "hbm" ? "hbm" : "l2";
    const cycles = sum([sum(waiting, of.gpu[`${queue}_queue_sharpness`]), ...others], of.gpu[`${queue}_sharpness`]);
    const gbps = ((load.tile_bytes * load.ctas_per_sm * smsOf(load, of, share)) / cycles) * (of.gpu.sm_clock_mhz / 1e3);
    const way = of[wayOf(mechanism, load, share)];
    const binding = Object.keys(found).reduce((a, b) => (found[b] > found[a] ? b : a));
    const instructions = moves.by_threads
      ? Math.max(1, load.tile_bytes / load.copy_bytes / load.threads)
      : moves.pushes ? load.fan_out : (load.copies + load.lookups) / load.issuers;
    return { mechanism, share, form: formOf(load), warps: load.warps, load, terms: found, cycles, gbps, binding, instructions, low: way.ratio_p05, high: way.ratio_p95 };
  }

  // What labkernels/forms.py and Question refuse, in the same words.
  function require(q, of, form) {
    const refuse = (text) => { throw new Refused(text); };
    for (const one of form) {
      const value = q[one.name], said = `${one.name} is ${value}`, whole = one.kind === "int";
      if (one.choices.length) {
        if (!one.choices.includes(value)) refuse(`${said}: give one of ${one.choices.join(", ")}`);
        continue;
      }
      if (!(whole ? Number.isInteger(value) : Number.isFinite(value))) refuse(`${said}, not a ${whole ? "whole" : "finite"} number`);
      if (value < one.least) refuse(`${said}, below the limit of ${one.least}: give ${one.least} or more`);
      if (value > one.most) refuse(`${said}, above the limit of ${one.most}: give ${one.most} or less`);
      if (one.power_of_two && value & (value - 1)) refuse(`${said}, not a power of two: give ${value & -value}, which divides it`);
    }
    if (q.row_bytes % q.element_bytes) refuse(`row_bytes is ${q.row_bytes}, no whole number of elements of ${q.element_bytes} bytes: give ${roundUp(q.row_bytes, q.element_bytes)}`);
    const pitch = q.pitch_bytes || q.row_bytes;
    if (pitch < q.row_bytes || pitch % q.element_bytes) refuse(`pitch_bytes is ${pitch}, rows have ${q.row_bytes}: give a multiple of ${q.element_bytes} that holds a row, or 0 for a dense tensor`);
    const span = (q.rows - 1) * pitch + q.row_bytes;
    if (span > q.tensor_mib * 2 ** 20) refuse(`tensor_mib is ${q.tensor_mib}, one tile reaches over ${span} bytes: give ${Math.ceil(span / 2 ** 20)} or more, or a smaller tile`);
    if (q.source === "computed" && q.cluster === 1) refuse("source is computed and cluster 1, so there is nobody to share with: give 2 or more");
    if (!q.product_rows !== !q.product_columns) refuse(`product_rows is ${q.product_rows} and product_columns ${q.product_columns}: give both, or 0 for both`);
    const tile = q.row_bytes * q.rows;
    const rows = Math.max(1, Math.floor((q.tensor_mib * 2 ** 20) / pitch / q.rows + 0.5)) * q.rows;
    const tensor = Math.floor(pitch / q.row_bytes) * q.row_bytes * rows, l2 = of.gpu.l2_bytes;
    if (q.source === "l2" && !l2) refuse("source is l2, and no source says how large L2 is on this GPU: give source hbm");
    if (q.source === "l2" && tensor > l2) refuse(`source is l2, the tensor has ${tensor} bytes and L2 ${l2}: give source hbm, or as tensor_mib the part that is read again and again`);
    const measured = Object.keys(of.gpu).filter((name) => name.startsWith("sms_at_fan_out_")).map((name) => Number(name.slice(15)));
    if (!measured.includes(q.cluster)) refuse(`cluster is ${q.cluster}, measured were ${measured.sort((a, b) => a - b).join(", ")}: give one of them`);
    return { pitch, tile, tensor, rows, columns: Math.floor(pitch / q.row_bytes) };
  }

  // The rules of labkernels/legality.py that an operand of the form can break, in the same words.
  const OCCUPANCY = "Hopper and Blackwell tuning guides, occupancy", ENCODE = "CUDA driver API, cuTensorMapEncodeTiled", BULK_COPY = "PTX ISA, cp.async.bulk";
  function broken(mechanism, q, { pitch, tile, rows, columns }) {
    const moves = MECHANISMS[mechanism], found = [], aligned = q.alignment_bytes || ALLOCATED, copy = copyBytes(q, pitch);
    const isBulk = !moves.by_threads && !moves.takes_tensor_map;
    const check = (holds, quantity, value, limit, fix, source) => holds || found.push([`${quantity}: ${limit}`, `${quantity} is ${value}, must be ${limit}. Fix: ${fix}. [${source}]`]);
    const multiple = (quantity, value, fix, source) => check(value % 16 === 0, quantity, value, "a multiple of 16", fix, source);
    const whole = (unit, source) => check(tile % unit === 0, "tile_bytes", tile, `a multiple of ${unit}`, `make a tile of ${roundUp(tile, unit)} bytes`, source);
    const address = (source) => check(aligned >= 16, "alignment_bytes", aligned, "at least 16", "start the tensor on a multiple of 16 bytes", source);
    const threads = roundUp(q.threads, 32) * q.ctas_per_sm, stage = roundUp(tile, 128) + 16, shared = q.stages * stage, cta = roundUp(shared + 1024, 128);
    check(threads <= 2048, "threads per SM", threads, "at most 2048", "use fewer CTAs per SM or fewer threads", OCCUPANCY);
    if (!(inRegisters(mechanism) && q.consumer === "registers")) {
      check(shared <= SHARED_PER_CTA, "shared_bytes", shared, `at most ${SHARED_PER_CTA}`, `use a smaller tile or fewer stages; ${Math.floor(SHARED_PER_CTA / stage)} stages of this tile fit`, OCCUPANCY);
      check(cta * q.ctas_per_sm <= SHARED_PER_SM, "shared bytes per SM", cta * q.ctas_per_sm, `at most ${SHARED_PER_SM}`, `use a smaller pipeline or fewer CTAs per SM; ${Math.floor(SHARED_PER_SM / cta)} fit`, OCCUPANCY);
    }
    if (moves.access_bytes.length) check(moves.access_bytes.includes(copy), "alignment_bytes", copy, `one of ${moves.access_bytes.join(", ")}`, "move 16 bytes per instruction", `PTX ISA, ${moves.ptx}`);
    if (moves.by_threads && !moves.touches_global) whole(copy, "PTX ISA, addresses as operands: aligned to the access size");
    if (isBulk) whole(16, BULK_COPY);
    if (isBulk && moves.touches_global) {
      address(BULK_COPY);
      const steps = [...(columns > 1 ? [q.row_bytes] : []), ...(rows > q.rows ? [pitch * q.rows] : [])];
      for (const step of steps) multiple("bytes from tile to tile", step, `pad rows until tiles are ${roundUp(step, 16)} bytes apart`, BULK_COPY);
    }
    if (moves.takes_tensor_map) {
      const split = "split the tensor along this dimension", side = "use a box side of 256 elements or fewer", wide = q.row_bytes / q.element_bytes;
      for (const [name, extent] of [["shape[0]", columns * wide], ["shape[1]", rows]]) check(extent <= 2 ** 32, name, extent, "at most 4294967296", split, ENCODE);
      if (!boxesOf(q)) {
        check(wide <= 256, "tile[0]", wide, "at most 256", side, ENCODE);
        check(q.rows <= 256, "rows", q.rows, "at most 256", side, ENCODE);
      }
      address(ENCODE);
      multiple("row_bytes", q.row_bytes, `make tile[0] ${Math.floor(roundUp(q.row_bytes, 16) / q.element_bytes)} elements`, ENCODE);
      multiple("the pitch", pitch, `pad dimension 0 until the stride is ${roundUp(pitch, 16)} bytes`, ENCODE);
    }
    if (moves.counts_bytes) check(tile <= 2 ** 20 - 1, "tile_bytes", tile, `at most ${2 ** 20 - 1}`, "spread the tile over more barrier phases", "PTX ISA, mbarrier contents: tx-count");
    return found;
  }

  function illegal(mechanism, q, shape) {
    const moves = MECHANISMS[mechanism], isMade = q.source === "computed";
    if ((isMade && !moves.crosses_ctas) || (!moves.touches_global && q.cluster === 1)) return [];
    const found = [mechanism, ...(isMade ? [] : moves.carriers)].flatMap((name) => broken(name, q, shape));
    const byRun = !moves.by_threads && !moves.takes_tensor_map && !moves.crosses_ctas, isDense = q.rows === 1 || shape.pitch === q.row_bytes;
    if (byRun && !isDense && (q.row_bytes % 16 || shape.pitch % 16))
      found.push(["row_bytes: a multiple of 16", `row_bytes is ${q.row_bytes}, must be a multiple of 16. Fix: pad rows to ${roundUp(q.row_bytes, 16)} bytes, the pitch to ${roundUp(shape.pitch, 16)}. [${BULK_COPY}]`]);
    const last = new Map(found.map(([key], at) => [key, at]));  // said once: the first text, at the place of the last
    return found.filter(([key], at) => last.get(key) === at).map(([key]) => found.find(([one]) => one === key)[1]);
  }

  // What labkernels/model/advisor.py excludes, in the same words.
  const NOBODY = "one CTA needs the tile: there is nobody to share it with";
  function reasons(mechanism, q, shape, of) {
    const found = illegal(mechanism, q, shape), bad = (holds, text) => holds || found.push(text);
    const moves = MECHANISMS[mechanism], inThreads = inRegisters(mechanism), isMade = q.source === "computed" && !moves.crosses_ctas;
    const held = Math.floor(Math.floor(shape.tile / q.threads) / 4);
    bad(!inThreads || held <= MOST_REGISTERS, `a thread would hold ${held} registers of a tile, of 255: give more threads or less rows`);
    bad(!inThreads || q.consumer === "registers" || q.stages > 1, "was measured with a tile in registers and two stages: give 2 stages");
    bad(!moves.crosses_ctas || q.cluster > 1, NOBODY);
    bad(!q.index_rows || moves.by_threads || moves.crosses_ctas || "lookup_cycles" in (of[mechanism] ?? {}), "page-table loads were not measured");
    bad(!q.index_rows || !moves.crosses_ctas, `${moves.touches_global ? "multicast of" : "forwarding"} indexed tiles was not measured`);
    if (isMade) bad(false, "the tile is computed in shared memory: there is nothing to load");
    else bad(q.cluster === 1 || moves.in_clusters, "was not measured with CTAs that need the same tile");
    bad(!q.product_rows || of[`${mechanism} beside wgmma`], "was not measured beside tensor cores");
    if (!found.length) bad(formsIn(mechanism, q, shape, of).length > 0, `has no ${q.pipeline} pipeline`);
    return found;
  }

  function nothingLeft(excluded) {
    const asked = Object.entries(excluded).filter(([, why]) => !why.includes(NOBODY)), names = new Map();
    for (const [name, why] of asked) for (const one of why) names.set(one, [...(names.get(one) ?? []), name]);
    const lines = [...names].sort((a, b) => b[1].length - a[1].length).map(([one, of]) => `${of.length === asked.length ? "all" : of.join(", ")}: ${one}`);
    return ["no mechanism can take this operand", ...lines].join("\n");
  }

  // Where the operand lies outside what was measured, and the rules of thumb that speak of it.
  function outside(q, shape, ranked, of) {
    const said = [], { tile, pitch } = shape, copy = copyBytes(q, pitch);
    const loads = ranked.map((one) => loadOf(one.mechanism, q, shape, of));
    const asked = { tile_bytes: tile, row_bytes: q.row_bytes, stages: q.stages, ctas_per_sm: q.ctas_per_sm, threads: q.threads };
    for (const [name, value] of Object.entries(asked)) {
      const [least, most] = ["least", "most"].map((end) => Math.trunc(of.range[`${name}_${end}`]));
      if (value < least || value > most) said.push(`${name} is ${value}; measured were ${least} to ${most}`);
    }
    if (copy < 16 && ranked.some((one) => MECHANISMS[one.mechanism].by_threads)) said.push(`threads copy ${copy} bytes at a time; measured were 16`);
    if (q.swizzle === "none" && loads.some((one) => one.copies > Math.max(1, one.lookups))) said.push("a tile is several copies; measured was one, or one under each index");
    if (loads[0].used_share < 1 && q.source === "hbm") said.push("rows with gaps: the share of HBM's rate that they waste is computed");
    if (q.consumer === "registers" && !ranked.every((one) => MECHANISMS[one.mechanism].through_registers)) said.push("consumer is registers: reading them from shared memory is not in the times");
    if (q.compute_cycles) said.push("compute_cycles: the constants are of pipelines that only copy");
    return said;
  }

  const COMPARE = { "==": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };
  const literal = (text) => (text === "True" ? true : text === "False" ? false : /^['"]/.test(text) ? text.slice(1, -1) : Number(text));
  function cited(q, { tile, pitch }, verdicts) {
    const isDense = q.rows === 1 || pitch === q.row_bytes;
    const said = { ...q, tile_bytes: tile, fan_out: q.cluster, is_dense: isDense, bytes_in_flight_per_sm: tile * q.stages * q.ctas_per_sm, slice_bytes: tile / q.cluster };
    const holds = (part) => {
      const [name, comparison, ...value] = part.split(" ");
      return COMPARE[comparison](said[name], literal(value.join(" ")));
    };
    return verdicts.filter(({ applies_to: when }) => when.split(" and ").every(holds)
      && (!q.index_rows || when.includes("index_rows")) && (copyBytes(q, pitch) === 16 || when.includes("fan_out")));
  }

  const inRegisters = (mechanism) => MECHANISMS[mechanism].through_registers && MECHANISMS[mechanism].touches_global;
  const copyBytes = (q, pitch) => Math.min(16, q.alignment_bytes || ALLOCATED, lowBit(pitch), lowBit(q.row_bytes));

  // TMA boxes of a tile's piece under one index; 0 if there is no such cut.
  function boxesOf(q) {
    const widest = Math.min(256, q.swizzle === "none" ? 256 : Math.floor(parseInt(q.swizzle) / q.element_bytes));
    const columns = q.row_bytes / q.element_bytes, rows = Math.min(q.index_rows || q.rows, q.rows);
    let across = 0, down = Math.ceil(rows / 256);
    for (let n = Math.ceil(columns / widest); n <= columns && !across; n++) if (columns % n === 0 && (q.row_bytes / n) % 16 === 0) across = n;
    while (rows % down) down++;
    return across * down;
  }

  function l2Share(mib, of) {
    const points = Object.entries(of["L2 footprint"]).map(([name, value]) => [Number(name.split("_")[2]), value]).sort((a, b) => a[0] - b[0]);
    const before = points.filter(([at]) => at <= mib), after = points.filter(([at]) => at > mib);
    if (!before.length || !after.length) return (before.length ? before[before.length - 1] : after[0])[1];
    const [left, low] = before[before.length - 1], [right, high] = after[0];
    return low + ((high - low) * (mib - left)) / (right - left);
  }

  function loadOf(mechanism, q, { pitch, tile }, of) {
    const moves = MECHANISMS[mechanism], isDense = q.rows === 1 || pitch === q.row_bytes;
    const pieces = q.index_rows ? Math.ceil(q.rows / q.index_rows) : 1;
    const copies = moves.takes_tensor_map || moves.carriers.length ? pieces * boxesOf(q) : moves.by_threads || isDense ? pieces : q.rows;
    const used = Math.floor(pitch / q.row_bytes) * q.row_bytes, step = gcd(pitch, SECTOR_BYTES);
    let sectors = 0;
    for (let start = 0; start < SECTOR_BYTES; start += step) sectors += (roundUp(start + used, SECTOR_BYTES) * step) / SECTOR_BYTES;
    return {
      tile_bytes: tile, row_bytes: q.row_bytes, is_dense: isDense,
      tiles_in_flight: q.stages, ctas_per_sm: q.ctas_per_sm, threads: q.threads, pipeline: "specialized", warps: 1, barriers: 1,
      source: q.source, fan_out: q.cluster, pace: q.pace, copies, lookups: q.index_rows ? pieces : 0, issuers: q.issuers,
      compute_cycles: q.compute_cycles, copy_bytes: copyBytes(q, pitch), used_share: used / Math.min(pitch, sectors),
      l2_share: q.source === "l2" ? l2Share(q.tensor_mib, of) : 1,
    };
  }

  function formsIn(mechanism, q, shape, of) {
    const load = loadOf(mechanism, q, shape, of);
    if (inRegisters(mechanism) && q.consumer === "registers") {
      const sets = Math.min(q.stages, SETS, Math.floor(MOST_REGISTERS / Math.max(1, Math.floor(Math.floor(load.tile_bytes / load.threads) / 4))));
      return [{ ...load, pipeline: "multistage", tiles_in_flight: Math.max(1, sets) }];
    }
    return formsOf(mechanism, load, q.stages).filter((one) => q.pipeline === "any" || q.pipeline === one.pipeline);
  }

  function fastestForm(found) {
    const fastest = Math.max(...found.map((one) => one.gbps));
    return found.filter((one) => one.gbps * SAME_FORM >= fastest)
      .reduce((a, b) => (b.warps < a.warps || (b.warps === a.warps && b.gbps > a.gbps) ? b : a));
  }

  // A mechanism in its fastest form, no faster than tensor cores beside it: labkernels/model/beside.py.
  function fastest(mechanism, q, shape, of) {
    const one = fastestForm(formsIn(mechanism, q, shape, of).map((form) => predict(mechanism, form, of)));
    if (!q.product_rows) return one;
    const { product_rows: m, product_columns: n, row_bytes } = q, way = of[`${mechanism} beside wgmma`];
    const tensor = (m * n * row_bytes) / 4096, stage = (m + n) * row_bytes, read = (m + Math.floor((n * m) / 64)) * row_bytes;
    const shared = stage / way.copy_bytes_per_cycle + (way.read_bytes_per_cycle ? read / way.read_bytes_per_cycle : 0);
    const drawn = 1 + (way.power_flop_per_byte * stage * q.element_bytes) / (2 * m * n * row_bytes);
    const cycles = Math.max(tensor, shared) * drawn * q.ctas_per_sm, period = Math.max(cycles, one.cycles);
    const terms = { ...one.terms, "tensor cores": cycles };
    const binding = Object.keys(terms).reduce((a, b) => (terms[b] > terms[a] ? b : a));
    return { ...one, terms, binding, cycles: period, gbps: (one.gbps * one.cycles) / period };
  }

  function rateOf(mechanism, q, of, form) {
    let shape;
    try {
      shape = require(q, of, form);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return 0;
    }
    if (reasons(mechanism, q, shape, of).length) return 0;
    return fastest(mechanism, q, shape, of).gbps;
  }

  function bestGain(q, now, of, form, pitch) {
    let change = "", gain = 1;
    if (["compute", "tensor cores"].includes(now.binding)) return { change, gain };
    const { rows, stages, ctas_per_sm: ctas } = q, work = 2 * q.compute_cycles, unit = VECTOR_BYTES * q.cluster;
    const changes = {
      [`keep ${2 * stages} stages instead of ${stages}`]: { stages: 2 * stages },
      [`make tiles of ${2 * rows} rows instead of ${rows}`]: { rows: 2 * rows, compute_cycles: work },
      [`run ${2 * ctas} CTAs on an SM instead of ${ctas}`]: { ctas_per_sm: 2 * ctas, compute_cycles: work },
      "let 4 warps share the copies": { issuers: Math.max(4, q.issuers) },
    };
    const whole = unit / gcd(q.row_bytes, unit);
    if (q.cluster > 1 && rows % whole) changes[`pad tiles to ${roundUp(rows, whole)} rows`] = { rows: roundUp(rows, whole), useful: rows / roundUp(rows, whole) };
    if (q.row_bytes < 128 && (rows === 1 || pitch === q.row_bytes))
      changes["make rows of 128 bytes"] = { row_bytes: 128, pitch_bytes: 0, rows: Math.max(1, Math.floor((rows * q.row_bytes) / 128)) };
    for (const [what, { useful = 1, ...changed }] of Object.entries(changes)) {
      const ratio = (rateOf(now.mechanism, { ...q, ...changed }, of, form) * useful) / now.gbps;
      if (ratio > gain) [change, gain] = [what, ratio];
    }
    return { change, gain };
  }

  function advise(q, of, form, verdicts) {
    const shape = require(q, of, form);
    const excluded = {};
    for (const name in MECHANISMS) {
      const why = reasons(name, q, shape, of);
      if (why.length) excluded[name] = why;
    }
    const preference = Object.keys(MECHANISMS);
    const ranked = preference.filter((name) => !(name in excluded))
      .map((name) => fastest(name, q, shape, of));
    if (!ranked.length) throw new Refused(nothingLeft(excluded));
    for (const one of ranked) {
      const moves = MECHANISMS[one.mechanism], who = moves.by_threads && moves.touches_global ? one.mechanism : "tma";
      const start = of[who][`start_${q.source === "hbm" ? "hbm" : "l2"}_us`], bytes = (shape.tensor * q.cluster) / one.gbps / 1e3;
      one.start_us = start;
      [one.time_us, one.low_us, one.high_us] = [1, one.low, one.high].map((times) => start + bytes * times);
    }
    ranked.sort((a, b) => b.gbps - a.gbps);
    const first = ranked[0], isShort = (shape.tensor * q.cluster) / first.gbps / 1e3 < first.start_us;
    const speed = (one) => (isShort ? 1 / one.time_us : one.gbps);
    ranked.sort((a, b) => speed(b) - speed(a));
    const tied = ranked.filter((one) => speed(one) * NO_DIFFERENCE >= speed(ranked[0])).map((one) => one.mechanism);
    const place = (one) => preference.indexOf(one.mechanism);
    const direct = q.consumer === "registers" && ranked.find((one) => inRegisters(one.mechanism) && one.gbps / one.low >= ranked[0].gbps / ranked[0].high);
    const choice = direct || ranked.filter((one) => tied.includes(one.mechanism))
      .reduce((a, b) => (b.instructions - a.instructions || place(b) - place(a)) < 0 ? b : a);
    const in_cluster = q.cluster > 1 ? choice.share !== "alone" : null;
    const more = { rules: cited(q, shape, verdicts), outside: outside(q, shape, ranked, of), ...bestGain(q, choice, of, form, shape.pitch) };
    return { choice: choice.mechanism, in_cluster, tied, ranked, excluded, ...more };
  }

  const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: value < 1000 ? 3 : 4 });
  const interval = (one) => `${number(one.time_us)} µs (${number(one.low_us)} to ${number(one.high_us)})`;
  const make = (tag, text, parts = []) => {
    const element = Object.assign(document.createElement(tag), text ? { textContent: text } : {});
    element.append(...parts);
    return element;
  };
  const list = (title, lines) => (lines.length ? [make("p", "", [make("strong", title)]), make("ul", "", lines.map((line) => make("li", line)))] : []);

  function row(cells, heads) {
    const line = document.createElement("tr");
    cells.forEach((text, at) => {
      const cell = make("td", text);
      cell.dataset.label = heads[at];
      line.append(cell);
    });
    return line;
  }

  function start(root) {
    const { constants, others, meanings, mechanisms, form: entries, rules, worthwhile } = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    Object.assign(MECHANISMS, mechanisms);
    const form = root.querySelector("form"), body = root.querySelector("tbody"), heads = [...root.querySelectorAll("thead th")].map((one) => one.textContent);
    const answer = root.querySelector(".lab-decide-answer"), brief = root.querySelector(".lab-decide-brief"), more = root.querySelector(".lab-decide-more");
    const fields = [...form.elements].filter((field) => field.name);
    const gpu = fields.find((field) => field.name === "gpu"), preset = root.querySelector(".lab-decide-preset");
    const constantsOf = (name) => (name ? others[name].constants : constants);

    const kinds = Object.fromEntries(entries.map((one) => [one.name, one.kind]));
    const question = () =>
      Object.fromEntries(fields.filter((field) => field !== gpu).map(({ name, value }) => [name, kinds[name] === "str" ? value : Number(value || NaN)]));

    function tell(advice) {
      const chosen = advice.ranked.find((one) => one.mechanism === advice.choice), tied = advice.tied.filter((name) => name !== advice.choice);
      answer.textContent = advice.choice + (advice.in_cluster === null ? "" : advice.in_cluster ? ", in a cluster" : ", without a cluster: neighboring CTAs");
      brief.textContent = `${interval(chosen)}; ${chosen.binding} binds${tied.length ? `; no difference within 1.5%: ${tied.join(", ")}` : ""}`;
      for (const one of advice.ranked)
        body.append(row([[one.mechanism, one.share, one.form].filter(Boolean).join(", "), interval(one), number(one.gbps), `${one.binding}: ${meanings[one.binding]}`], heads));
      const byText = new Map();
      for (const [name, texts] of Object.entries(advice.excluded)) for (const text of texts) byText.set(text, [...(byText.get(text) ?? []), name]);
      const why = [...byText].map(([text, names]) => [text.includes("measured"), `${names.join(", ")}: ${text}`]);
      const warnings = [...(gpu.value ? [others[gpu.value].said] : []), ...advice.outside];
      more.append(
        ...(advice.gain >= worthwhile ? list("To gain most", [`${advice.change}: ${advice.gain.toFixed(2)} times as fast`]) : []),
        ...list("Outside the measured range", warnings),
        ...list("Rules that speak of this operand", advice.rules.map((rule) => `${rule.statement} (${rule.outcome}: ${rule.evidence})`)),
        ...list("Impossible", why.filter(([isMissing]) => !isMissing).map(([, text]) => text)),
        ...list("Not measured", why.filter(([isMissing]) => isMissing).map(([, text]) => text)),
      );
    }

    function show() {
      const begin = performance.now();
      body.replaceChildren();
      more.replaceChildren();
      brief.textContent = "";
      try {
        tell(advise(question(), constantsOf(gpu.value), entries, rules));
        root.dataset.refused = "";
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        const [first, ...lines] = error.message.split("\n");
        answer.textContent = first;
        root.dataset.refused = "true";
        more.append(...list("Why", lines));
      }
      root.dataset.milliseconds = performance.now() - begin;
    }

    function read() {
      const given = new URLSearchParams(location.hash.slice(1));
      for (const field of fields) if (given.has(field.name)) field.value = given.get(field.name);
      preset.value = [...preset.options].some((one) => one.value === location.hash) ? location.hash : "";
      show();
    }

    form.addEventListener("submit", (event) => event.preventDefault());
    preset.addEventListener("change", () => preset.value && (location.hash = preset.value));
    form.addEventListener("input", (event) => {
      if (event.target === preset) return;
      const changed = fields.filter((field) => field.value !== field.dataset.default);
      const hash = new URLSearchParams(changed.map((field) => [field.name, field.value])).toString();
      history.replaceState(null, "", `${location.pathname}${location.search}${hash ? `#${hash}` : ""}`);
      preset.value = "";
      show();
    });
    window.addEventListener("hashchange", () => {
      if (!location.hash.includes("=")) return;  // a heading's anchor
      for (const field of fields) field.value = field.dataset.default;
      read();
      root.scrollIntoView();
    });
    root.querySelector(".lab-decide-live").hidden = false;
    root.advise = (asked, name = "") => {
      try {
        return advise(asked, constantsOf(name), entries, rules);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        return { error: error.message };
      }
    };
    read();
  }

  document.querySelectorAll(".lab-decide").forEach(start);
})();
