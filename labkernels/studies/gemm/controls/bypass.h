// CUTLASS's cp.async main loops copy by cp.async.ca, through L1. Included before a unit, this makes them copy by
// cp.async.cg, past it; nothing else changes.
#pragma once
#include "cute/arch/copy_sm80.hpp"
#include "cute/numeric/integral_constant.hpp"

namespace cute {
template <>
struct SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint128_t, uint128_t> : SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t, uint128_t> {};
}  // namespace cute
