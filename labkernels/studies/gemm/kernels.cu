// CUTLASS GEMMs D[M,N] (bf16) = A[M,K] · B[N,K]ᵀ, float32 accumulation, row major. KERNELS names a file of lines
// K(name, element, tile M, N, K, cluster M, N, transport, mainloop schedule, epilogue schedule).
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#define private public  // OwnRing sets one private field of the ring
#include "cutlass/pipeline/sm90_pipeline.hpp"
#undef private
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"
#include "entry.h"

using namespace cute;
#if GEMM_SM == 100
using Arch = cutlass::arch::Sm100;
#else
using Arch = cutlass::arch::Sm90;
#endif
using Out = cutlass::bfloat16_t;
using Alone = Shape<_1, _1, _1>;

// How the CTAs of a cluster get their operands. The last two are controls: same cluster launch, same tile order, same
// stages as CUTLASS's own kernel, but every CTA loads its whole tiles itself with plain TMA.
enum class Transport { multicast, handshake, independent };

// A ring whose slots are released by the CTA's own consumers only, as in a cluster of one.
template <int Stages>
struct OwnRing : cutlass::PipelineTmaAsync<Stages> {
  using Ring = cutlass::PipelineTmaAsync<Stages>;
  template <class Cluster>
  CUTLASS_DEVICE OwnRing(typename Ring::SharedStorage& storage, typename Ring::Params params, Cluster)
      : Ring(storage, params, Alone{}) {
    this->dst_blockid_ = cute::block_rank_in_cluster();  // the ring of one signals rank 0; here that may be another CTA
  }
};

// The mainloop of a cluster of one, run inside a larger cluster.
template <class Mainloop, class Cluster, bool kHandshake>
struct WithoutMulticast : Mainloop {
  using Policy = typename Mainloop::DispatchPolicy;
  using DispatchPolicy = cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<Policy::Stages, Cluster, typename Policy::Schedule>;
  using MainloopPipeline =
      cute::conditional_t<kHandshake, typename Mainloop::MainloopPipeline, OwnRing<Policy::Stages>>;
  template <class Inputs, class Coordinates, class Steps>
  CUTLASS_DEVICE void load(typename Mainloop::Params const& params, typename Mainloop::MainloopPipeline ring,
                           typename Mainloop::PipelineState slot, Inputs const& inputs, Coordinates const& at, Steps step,
                           int count, int thread, uint32_t /*rank*/, typename Mainloop::TensorStorage& tensors) {
    Mainloop::load(params, ring, slot, inputs, at, step, count, thread, 0, tensors);
  }
};

template <class Element, int TM, int TN, int TK, int CM, int CN, Transport kTransport, class Schedule, class EpilogueSchedule>
struct Gemm {
  using Tile = Shape<Int<TM>, Int<TN>, Int<TK>>;
  using Cluster = Shape<Int<CM>, Int<CN>, _1>;
  using LoadCluster = cute::conditional_t<kTransport == Transport::multicast, Cluster, Alone>;
  using Row = cutlass::layout::RowMajor;
  using Column = cutlass::layout::ColumnMajor;
  static constexpr int kAlign = 128 / cutlass::sizeof_bits<Element>::value;
  static constexpr int kAlignOut = 128 / cutlass::sizeof_bits<Out>::value;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      Arch, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row,
      kAlignOut, Out, Row, kAlignOut, EpilogueSchedule>::CollectiveOp;
  using Built = typename cutlass::gemm::collective::CollectiveBuilder<
      Arch, cutlass::arch::OpClassTensorOp, Element, Row, kAlign, Element, Column, kAlign, float, Tile, LoadCluster,
      cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename Epilogue::SharedStorage))>, Schedule>::CollectiveOp;
  template <class M, Transport T>
  struct Select { using type = WithoutMulticast<M, Cluster, T == Transport::handshake>; };
  template <class M>
  struct Select<M, Transport::multicast> { using type = M; };
  using Mainloop = typename Select<Built, kTransport>::type;
  // a name of its own, so that the machine code tells which kernel it is
  struct Kernel : cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue, void> {};
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  // clusters that the current GPU holds at once, or a negative CUDA error
  static int max_clusters() {
    auto* kernel = (const void*)cutlass::device_kernel<Kernel>;
    if (auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize)) return -int(e);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CM;
    attribute.val.clusterDim.y = CN;
    attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(CM, CN, 1);
    config.blockDim = dim3(Kernel::MaxThreadsPerBlock);
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int count = 0;
    if (auto e = cudaOccupancyMaxActiveClusters(&count, kernel, &config)) return -int(e);
    return count;
  }

  static int create(void** plan, const void* a, const void* b, void* d, int m, int n, int k, int sms, int clusters, int swizzle,
                    void* stream) {
    auto stride_a = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1});
    auto stride_b = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1});
    auto stride_d = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
    cutlass::KernelHardwareInfo hardware;
    hardware.device_id = 0;
    hardware.sm_count = sms;
    hardware.max_active_clusters = clusters;
    typename Kernel::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1}, {(const Element*)a, stride_a, (const Element*)b, stride_b},
        {{1.f, 0.f}, nullptr, stride_d, (Out*)d, stride_d}, hardware};
    arguments.scheduler.max_swizzle_size = swizzle;
    if (auto s = Device::can_implement(arguments); s != cutlass::Status::kSuccess) return int(s);
    if (Device::get_workspace_size(arguments)) return int(cutlass::Status::kErrorWorkspaceNull);
    auto* device = new Device;
    if (auto s = device->initialize(arguments, nullptr, (cudaStream_t)stream); s != cutlass::Status::kSuccess) {
      delete device;
      return int(s);
    }
    *plan = device;
    return 0;
  }
  static int launch(void* plan, void* stream) { return int(static_cast<Device*>(plan)->run((cudaStream_t)stream)); }
  static void destroy(void* plan) { delete static_cast<Device*>(plan); }
  static Entry entry(const char* name) {
    return {name, Mainloop::DispatchPolicy::Stages, int(Kernel::SharedStorageSize), int(Kernel::MaxThreadsPerBlock),
            max_clusters, create, launch, destroy};
  }
};

#define K(name, element, tm, tn, tk, cm, cn, transport, loads, stores)                                                     \
  Gemm<cutlass::element, tm, tn, tk, cm, cn, Transport::transport, cutlass::gemm::loads, cutlass::epilogue::stores>::entry( \
      #name),
static const Entry kEntries[] = {
#include KERNELS
};
static const bool kRegistered = (registry().insert(registry().end(), std::begin(kEntries), std::end(kEntries)), true);
