// What NCCL's operators make of the data of all ranks, for each of its types.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "simulator/nccl/abi.h"

namespace cachalot::simulator::nccl {

// Returns the size of an element. Throws ncclInvalidArgument for a type that there is not.
std::size_t element_bytes(ncclDataType_t type);

struct Reduction {
  ncclRedOp_t op = ncclSum;
  std::vector<char> factor;  // of ncclRedOpCreatePreMulSum, an element; empty: none. `op` is ncclSum then
};

// Returns the reduction, element by element, of arrays of the same size, which are ordered by rank. Floats are added as
// doubles and rounded once, to the nearest; integers wrap around. Every rank gets the same bytes.
std::vector<char> reduce(ncclDataType_t type, const Reduction& reduction, std::span<const std::vector<char>> arrays);

}  // namespace cachalot::simulator::nccl
