// Settings of a test for the simulated driver. A real driver does not have them.
#pragma once

#include <dlfcn.h>

#include "simulator/include/cachalot/simulator.h"

namespace cachalot {

// cachalot_sim_handles, of which a test names what is not zero.
struct SimulatedHandles {
  int claims_fabric = 0;
  int claims_rdma = 0;
  int granularity_error = 0;
  int create_fabric_error = 0;
  int create_file_error = 0;
  int create_rdma_error = 0;
  int access_rdma_error = 0;
  int export_file_error = 0;
};

inline bool is_driver_simulated() { return dlsym(RTLD_DEFAULT, "cachalot_sim_set_handles") != nullptr; }

// Both return 0 or an error, and are for device 0.
inline int set_simulated_handles(const SimulatedHandles& handles) {
  const auto set =
      reinterpret_cast<decltype(&cachalot_sim_set_handles)>(dlsym(RTLD_DEFAULT, "cachalot_sim_set_handles"));
  const cachalot_sim_handles all{handles.claims_fabric,       handles.claims_rdma,       handles.granularity_error,
                                 handles.create_fabric_error, handles.create_file_error, handles.create_rdma_error,
                                 handles.access_rdma_error,   handles.export_file_error};
  return set(0, &all);
}

inline int set_simulated_faults(const char* faults) {
  const auto set = reinterpret_cast<decltype(&cachalot_sim_set_faults)>(dlsym(RTLD_DEFAULT, "cachalot_sim_set_faults"));
  return set(0, faults);
}

}  // namespace cachalot
