"""Timed rounds: all configurations of a round in random order, so that ratios between them are paired."""

from collections.abc import Callable
from typing import Any

import numpy as np

from labkernels.device import Gpu
from labkernels.protocols.experiment import Progress, Result
from labkernels.protocols.memory import Memory
from labkernels.protocols.stream import Configuration, Stream


def measure_streams(
    gpu: Gpu,
    configurations: list[Configuration],
    footprint_bytes: int,
    rounds: int,
    bytes_moved: int,
    progress: Progress,
    table: str = "throughput",
    describe: Callable[[Stream], dict[str, Any]] = lambda stream: {},
) -> Result:
    """`timed_rounds` over a memory of its own, as rows of a table; arguments as there."""
    memory = Memory(gpu, footprint_bytes)
    rows, streams = timed_rounds(gpu, memory, configurations, rounds, bytes_moved, progress, describe)
    for stream in streams:
        stream.close()
    memory.close()
    return Result({table: rows}, [stream.kernel for stream in streams])


def timed_rounds(
    gpu: Gpu,
    memory: Memory,
    configurations: list[Configuration],
    rounds: int,
    bytes_moved: int,
    progress: Progress,
    describe: Callable[[Stream], dict[str, Any]] = lambda stream: {},
) -> tuple[list[dict[str, Any]], list[Stream]]:
    """Check every configuration, then time all of them in every round.

    Configurations of which an SM cannot hold `ctas_per_sm` blocks are left out: they would measure another number.

    Args:
        gpu: where.
        memory: what is read; at least as large as every operand.
        configurations: what to run.
        rounds: how often each is timed.
        bytes_moved: by each timed launch, at least.
        progress: bar over checks and rounds.
        describe: further columns of a stream's rows.

    Returns:
        One row per configuration and round, and the streams that ran.

    Raises:
        WrongBytes: a configuration delivered wrong bytes; nothing is timed.
        StalledWait: a barrier was never completed.
    """
    streams = []
    for configuration in progress(configurations, "check"):
        stream = Stream(gpu, configuration, memory.buffer, memory.seed)
        if stream.resident_ctas_per_sm < configuration.operand.ring.ctas_per_sm:
            stream.close()
            continue
        stream.check()
        streams.append(stream)
    order = np.random.default_rng(memory.seed)
    rows = []
    for number in progress(range(rounds), "time"):
        for index in order.permutation(len(streams)):
            stream = streams[index]
            tiles = stream.tiles_for(bytes_moved)
            if stream.configuration.source == "l2":
                stream.launch(stream.tiles_for(2 * stream.footprint_bytes))
            duration_us = stream.time_us(tiles)
            rows.append({**_row(stream, tiles, number, duration_us), **describe(stream)})
    for stream in streams:
        stream.require_arrived()
        stream.launch(tiles := stream.tiles_for(bytes_moved))
        stream.require_arrived()
        stream.check_sums(tiles)
    return rows, streams


def _row(stream: Stream, tiles: int, number: int, duration_us: float) -> dict[str, Any]:
    return {
        **stream.row(tiles),
        "round": number,
        "duration_us": round(duration_us, 3),
        "gbps": round(stream.bytes_moved(tiles) / duration_us / 1e3, 2),
    }
