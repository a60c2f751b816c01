# make gemm: CUTLASS's GEMMs for Hopper and SM100 with nvcc, and the census of their code. No GPU needed.
.PHONY: gemm

gemm: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .cache/cutlass \
	  nvidia-cutlass==$$($(BIN)/python -c 'from labkernels.studies.gemm.build import CUTLASS_VERSION; print(CUTLASS_VERSION)')
	$(BIN)/python -m labkernels.studies.gemm.build --arch sm_90a
	$(BIN)/python -m labkernels.studies.gemm.build --arch sm_100a
	$(BIN)/python -m labkernels.studies.gemm.code
	$(BIN)/python -m pytest -q tests/test_gemm.py
