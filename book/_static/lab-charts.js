// Replace each static chart by a live one; keep the static one if anything fails.
(() => {
  const NARROW = 480; // pixels

  const GLYPH = 9.2; // pixels of a title's letter, on average
  const MARGIN = 60; // pixels beside a narrow plot, for the labels of its y axis

  // A title breaks where the column ends: Vega draws it as one line.
  function wrapped(text, width) {
    const lines = [""], most = Math.floor(width / GLYPH);
    for (const word of [text].flat().join(" ").split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length >= most) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines;
  }

  // An x axis of a narrow plot: its title breaks, and names stand aslant.
  function narrowed(x, width) {
    const isNamed = x.type === "nominal" || x.type === "ordinal";
    const aslant = isNamed ? { labelAngle: -90, labelOverlap: false } : {};
    const axis = x.axis === null ? null : { ...x.axis, titleAnchor: "end", ...aslant };
    return { ...x, axis, ...(x.title ? { title: wrapped(x.title, width - 2 * MARGIN) } : {}) };
  }

  // A single or layered view fills the column; a composed one stacks its views where the page is narrow.
  function fit(spec, width, columns) {
    if (spec.title) spec.title = wrapped(spec.title, width);
    if (spec.mark || spec.layer) {
      spec.width = "container";
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    if (columns) {
      spec.config.legend.columns = columns;
      spec = JSON.parse(JSON.stringify(spec, (key, value) => (key === "legend" && value?.columns ? { ...value, columns } : value)));
    }
    if (width < NARROW) {
      spec.columns = 1;
      Object.assign(spec.config.legend, { labelLimit: width - MARGIN, layout: { top: { direction: "vertical" } } });
      spec = JSON.parse(JSON.stringify(spec), (key, value) => {
        if (key === "legend" && value?.labelLimit) return { ...value, labelLimit: width - MARGIN };
        if (key === "y" && value?.axis?.labelLimit) return { ...value, axis: { ...value.axis, labelLimit: 2 * MARGIN } };
        return key === "x" && value?.field ? narrowed(value, width) : value;
      });
      if (spec.hconcat) {
        spec.vconcat = spec.hconcat;
        delete spec.hconcat;
      }
    }
    return spec;
  }

  function overflows(live) {
    const right = live.getBoundingClientRect().right + 1, svg = live.querySelector("svg");
    return svg.getAttribute("width") > live.clientWidth + 1 || [...live.querySelectorAll(".role-legend")].some((one) => one.getBoundingClientRect().right > right);
  }

  async function draw(figure) {
    const text = figure.querySelector('script[type="application/json"]').textContent;
    figure.dataset.picks = text.includes('"bind":"legend"');
    const live = document.createElement("div");
    live.className = "lab-chart-live";
    figure.querySelector(".lab-chart-static").after(live);
    try {
      for (const columns of [0, 3, 2, 1]) {  // the legend in fewer columns, until it fits
        await window.vegaEmbed(live, fit(JSON.parse(text), figure.clientWidth, columns), { actions: false, renderer: "svg" });
        if (!live.querySelector(".role-legend") || !overflows(live)) break;
      }
      for (const mark of live.querySelectorAll('[role^="graphics-"]')) mark.removeAttribute("role"); // nameless: the figure has the label
      figure.dataset.live = "true";
    } catch (error) {
      live.remove();
      figure.dataset.live = "false";
      console.error("chart stays static:", error);
    }
  }

  // Paper is light.
  const root = document.documentElement;
  let theme;
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details.lab-print").forEach((one) => (one.open = true));
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = theme;
  });

  // The theme names these otherwise than they read: who speaks to their screen could not call them.
  const MISNAMED = "summary[aria-label], .search-button__button, .theme-switch-button";

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(MISNAMED).forEach((one) => one.removeAttribute("aria-label")));
  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("figure.lab-chart").forEach(draw));
})();
