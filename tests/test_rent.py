"""What a batch on a rented GPU takes and costs."""

import pandas as pd
import pytest

from labkernels.book import rent
from labkernels.errors import NotMeasured
from labkernels.store import Store

GPU = "NVIDIA H200"


def test_minutes_are_from_the_first_start_to_the_last_end():
    runs = pd.DataFrame(
        {
            "started_utc": pd.to_datetime(["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"]),
            "wall_s": [90.0, 30.0],
        }
    )
    assert rent.minutes(runs) == 1.5


def test_a_batch_is_of_one_card_and_commit():
    runs = rent.newest_batch(Store(), GPU)
    assert runs["gpu_uuid_hash"].nunique() == runs["commit"].nunique() == 1 and set(runs["preset"]) == {
        "quick"
    }
    assert rent.minutes(runs) >= runs["wall_s"].sum() / 60
    with pytest.raises(NotMeasured, match="no quick runs of H9999"):
        rent.newest_batch(Store(), "H9999")


def test_costs_are_prices_by_minutes_and_say_whose_minutes_they_are():
    rents = Store().read("rents")
    table = rent.costs(Store(), GPU, 30.0)
    assert [*map(float, table["$ for the batch"])] == pytest.approx([*rents["usd_per_hour"] / 2], abs=0.006)
    assert set(table.loc[table["minutes"].eq("measured"), "GPU"]) == {"H200 SXM5"}
    assert rents["source"].str.startswith("https://").all() and set(rents["gpu"]) <= set(
        Store().read("gpus")["name"]
    )
