// How communicators are made: of an id that the ranks share, and of another communicator. Each function throws NcclError; in a
// group the communicator is usable when the group has ended.
#pragma once

#include <memory>
#include <vector>

#include "simulator/nccl/communicator.h"

namespace cachalot::simulator::nccl {

ncclUniqueId new_unique_id();

// Blocks until all ranks have come.
ncclComm_t join(const ncclUniqueId& id, int ranks, int rank, const ncclConfig_t* config);
// One communicator for each device of the list (null: the first ones) in this process, in their order.
void join_all(ncclComm_t* comms, int devices, const int* device_list);

// Blocks until all ranks of the parent have come. Writes a null pointer to `child` if the color is kNcclNoColor. Absent ranks
// count as ranks of the same color.
void split(std::shared_ptr<Communicator> parent, int color, int key, ncclComm_t* child, const ncclConfig_t* config);
// Waits for nobody.
ncclComm_t shrink(const std::shared_ptr<Communicator>& parent, std::vector<int> excluded, const ncclConfig_t* config);

}  // namespace cachalot::simulator::nccl
