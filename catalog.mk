# make catalog: the census of FlashAttention-3 from the wheel on PyPI, then its source rules against it.
.PHONY: catalog

CATALOG := data/catalog

catalog: $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
	  --python-version 3.11 --platform manylinux_2_28_x86_64 --dest .cache/wheels -r $(CATALOG)/wheels.txt
	$(BIN)/python -m labkernels census --csv .cache/wheels/flash_attn3_jax-0.2.3-*.whl > .cache/fa3_census.csv
	$(BIN)/python -m labkernels.production.catalog < .cache/fa3_census.csv > $(CATALOG)/fa3_census.csv.new
	mv $(CATALOG)/fa3_census.csv.new $(CATALOG)/fa3_census.csv
	$(BIN)/python -m pytest -q tests/test_catalog.py
