# The layers, lowest first: a file may include from its own layer and from lower ones. A line is a layer: its rank, then
# the paths in it, folders with a slash at the end. The longest path that matches a file decides.

set(layers
  "0 allocator/base/              allocator/include/cachalot/errors.h   allocator/include/cachalot/call_stack.h"
  "0 allocator/include/cachalot/require_cpp17.h  allocator/include/cachalot/same_version.h"
  "0 allocator/include/cachalot/span.h           allocator/include/cachalot/version.h"
  "1 allocator/device/            allocator/include/cachalot/device.h"
  # events.h and stats.h have plain values that every layer above may name.
  "2 allocator/policy/            allocator/include/cachalot/options.h  allocator/include/cachalot/events.h"
  "2 allocator/include/cachalot/stats.h"
  # The simulated device and, over it, the simulated CUDA runtime stand beside the allocator.
  "2.1 simulator/device/"
  "2.21 simulator/include/"
  "2.22 simulator/models/"
  "2.23 simulator/base/"
  "2.24 simulator/state/"
  "2.25 simulator/libraries/      simulator/nccl/"
  "2.26 simulator/driver/         simulator/runtime/             simulator/python/"
  # The report at the end tells of all of them.
  "2.26 simulator/base/report.cpp"
  "3 allocator/blocks/"
  "4 allocator/pages/"
  "5 allocator/caches/"
  "6 allocator/heap/              allocator/include/cachalot/private_pool.h"
  "7 allocator/growth/"
  # In api/: one device, then all devices, then what is built of them.
  "8 allocator/api/fast_path.h    allocator/api/fast_path.cpp    allocator/api/inspection.h  allocator/api/inspection.cpp"
  "9 allocator/api/device_allocator.h     allocator/api/device_allocator.cpp"
  "10 allocator/api/              allocator/include/cachalot/allocator_groups.h"
  "10 allocator/include/cachalot/caching_allocator.h"
  "11 allocator/api/buffers.cpp   allocator/include/cachalot/buffers.h"
  "11 allocator/api/pinned_host_allocator.cpp  allocator/include/cachalot/pinned_host_allocator.h"
  "13 pool/"
  "13 kernels/"
  "13.1 diagnostics/"
  # The functions of the C API are compiled into the plug-in as well.
  "13.15 c_api/"
  # The plug-in sees the C++ API; an adapter, compiled by its user, sees the public headers and plug.h.
  "13.2 pytorch/plug/             pytorch/cachalot/"
  "14 pytorch/adapter/            pytorch/include/"
  # Adapters for other libraries: headers alone, over the public headers and those of the library.
  "14 adapters/"
  "14.1 tools/base/"
  "14.2 tools/replay/"
  "14.3 tools/history/"
  "14.4 tools/analysis/           tools/live/"
  "14.5 tools/simulation/         tools/output/                  tools/html/"
  "14.55 tools/serving/"
  "14.6 tools/commands/"
  "15 tests/  bench/  examples/")

# The wings, of which the core's folders include nothing.
set(core "^(allocator|pool|kernels)/")
set(wings "^(adapters|c_api|diagnostics|pytorch|simulator|tools)/")

# What wings may use of the core beside its public headers. Bytes, checks, texts and locks; PyTorch's rules and the grammar of options;
# CUDA's numbers and addresses.
set(support
  allocator/base/bytes.h  allocator/base/check.h    allocator/base/environment.h  allocator/base/exported_files.h
  allocator/base/format.h allocator/base/json_writer.h
  allocator/base/locks.h  allocator/base/own_code.h allocator/base/process.h  allocator/base/suggestions.h
  allocator/policy/option_grammar.h  allocator/policy/options_without_effect.h  allocator/policy/torch_policy.h
  allocator/device/addresses.h       allocator/device/cuda_codes.h              allocator/device/cuda_device.h
  allocator/device/unified_memory.h
  # The guard stands before the heaps and uses their parts.
  allocator/base/function_ref.h      allocator/device/known_stream.h            allocator/api/device_allocator.h
  allocator/api/allocator_state.h allocator/api/front.h                   allocator/heap/heap_state.h
  allocator/heap/observers.h)

# Headers from outside, and the only places in allocator/ that may include them. Elsewhere they are free to use.
# A line: a regular expression for what is included, then paths.
set(reserved_headers
  "^cuda|^driver_types|^vector_types  allocator/device/cuda_driver.h c_api/include/cachalot/c_api.h adapters/include/cachalot/caching_device_allocator.h adapters/include/cachalot/cub_environment.h"
  "^thrust/                           adapters/include/cachalot/thrust.h"
  "^nvtx3/                            adapters/include/cachalot/nvtx.h"
  "^NvInfer                           adapters/include/cachalot/tensorrt.h")

# What the libraries must not make their users install: tools/, tests/, bench/ and examples/ may.
set(not_in_libraries "^fmt/|^nlohmann/|^CLI/|^zlib|^gtest/|^benchmark/")
