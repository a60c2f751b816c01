"""Main loops on a GPU: every accumulator of every kernel against NumPy, and one that is wrong is found."""

import numpy as np
import pytest

from labkernels.device import Gpu
from labkernels.protocols.mainloop import PITCH_BYTES, MainLoop, Operands
from labkernels.protocols.stream import WrongBytes
from labkernels.studies.kernel.mainloop import PRESETS, configurations, contest

pytestmark = pytest.mark.gpu

CHOSEN = list(configurations(PRESETS["full"]))


@pytest.fixture(scope="module")
def gpu():
    return Gpu()


@pytest.fixture(scope="module")
def memory(gpu):
    memory = Operands(CHOSEN, gpu.facts.sm_count)
    yield memory
    memory.close()


@pytest.mark.parametrize("one", CHOSEN, ids=lambda c: f"{c.spec.name} {c.stages} {c.source} {c.data}")
def test_every_accumulator_is_numpys(gpu, memory, one):
    loop = MainLoop(gpu, one, memory)
    loop.check()
    loop.check(laps=1)
    loop.close()


@pytest.mark.parametrize("one", contest((128, 128)), ids=lambda c: c.spec.name)
def test_a_wrong_row_is_found(gpu, one):
    memory = Operands([one], gpu.facts.sm_count)
    memory.buffers["random", 0][0].write(np.zeros(PITCH_BYTES // 2, np.uint16), 77 * PITCH_BYTES)
    with pytest.raises(WrongBytes, match="of the accumulators are wrong; block 0"):
        MainLoop(gpu, one, memory).check()
    memory.close()
