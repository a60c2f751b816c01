# make catalog: the census of FlashAttention-3 and of other libraries' kernels from the wheels on PyPI (1 GB), then what
# their source says against it. make sources: is every quoted line of the catalog where it says?
.PHONY: catalog sources

catalog: $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
	  --python-version 3.11 --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
	  --platform manylinux2014_x86_64 --dest .cache/wheels -r data/catalog/wheels.txt
	$(BIN)/python -m labkernels.production.catalog .cache/wheels/flash_attn3_jax-0.2.3-*.whl
	$(BIN)/python -m labkernels.production.library_kernels .cache/wheels
	$(BIN)/python -m pytest -q tests/test_catalog.py

# Clones hold commits, and files as they are asked for.
sources: $(STAMP)
	@mkdir -p .cache/sources
	@for url in $$($(BIN)/python -c 'from labkernels.production.sources import REPOSITORIES as all; print(*{*all.values()})'); do \
	  test -e .cache/sources/$${url##*/} || git clone --quiet --filter=blob:none --no-checkout $$url .cache/sources/$${url##*/}; \
	done
	$(BIN)/python -m labkernels.production.sources .cache/sources
