// The library's C interface, and a stamp of every SM's clock beside the wall clock.
#include "cutlass/cutlass.h"
#include "entry.h"

// One block per SM; each leaves cycle counter and nanoseconds at stamps[slot][sm].
__global__ void stamp_clocks(unsigned long long* stamps, int slot) {
  unsigned sm;
  unsigned long long cycles, nanoseconds;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  unsigned long long* mine = stamps + 2 * (size_t(slot) * gridDim.x + sm);
  mine[0] = cycles;
  mine[1] = nanoseconds;
}

extern "C" {
int gemm_count() { return int(registry().size()); }
const char* gemm_name(int i) { return registry()[i].name; }
void gemm_info(int i, int* out) {
  out[0] = registry()[i].stages;
  out[1] = registry()[i].shared_bytes;
  out[2] = registry()[i].threads;
}
int gemm_max_clusters(int i) { return registry()[i].max_clusters(); }
int gemm_create(int i, void** plan, const void* a, const void* b, void* d, int m, int n, int k, int sms, int clusters, int swizzle,
                void* stream) {
  return registry()[i].create(plan, a, b, d, m, n, k, sms, clusters, swizzle, stream);
}
int gemm_launch(int i, void* plan, void* stream) { return registry()[i].launch(plan, stream); }
void gemm_destroy(int i, void* plan) { registry()[i].destroy(plan); }
const char* gemm_error(int status) { return cutlass::cutlassGetStatusString(cutlass::Status(status)); }
int gemm_stamp(void* stamps, int slot, int sms, void* stream) {
  stamp_clocks<<<sms, 1, 0, (cudaStream_t)stream>>>((unsigned long long*)stamps, slot);
  return int(cudaGetLastError());
}
}
