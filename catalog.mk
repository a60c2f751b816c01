# make catalog: the census of FlashAttention-3 from the wheel on PyPI, then its source rules against it.
.PHONY: catalog

catalog: $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
	  --python-version 3.11 --platform manylinux_2_28_x86_64 --dest .cache/wheels -r data/catalog/wheels.txt
	$(BIN)/python -m labkernels.production.catalog .cache/wheels/flash_attn3_jax-0.2.3-*.whl
	$(BIN)/python -m pytest -q tests/test_catalog.py
