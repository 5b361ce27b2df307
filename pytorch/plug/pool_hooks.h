// Tensor pools over the process's allocator, for the Python package, by ctypes. Codes and texts: hooks.h.
//
// A pool, a set and a lease are pointers, each to be given back once with its own function; its use while another thread
// gives it back is a mistake that is not found. Otherwise thread-safe. cachalot_plug_lease_capsule is called with
// Python's lock (GIL) held, all others better without: they may wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cachalot/device.h"
#include "cachalot/pool_set.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/lent_tensors.h"

extern "C" {

struct CachalotTensorSpec {
  const std::int64_t* shape;
  int dimensions;
  int dtype;  // cachalot_plug_dtype's number
  int device;
};

// TensorPoolOptions. The choices are numbers of its enumerations; high_water is -1 for none.
struct CachalotPoolOptions {
  std::size_t initial_slots;
  std::size_t max_slots;
  std::size_t growth_step;
  int when_empty;
  int other_stream;
  int on_reuse;
  std::int64_t high_water;
  std::size_t alignment;
  cachalot::Stream stream;
};

// A lease: one holder of a tensor that is out.
using CachalotLease = std::shared_ptr<cachalot::LentTensor>;

// Sets `number` to that of a type by its name.
CACHALOT_EXPORT int cachalot_plug_dtype(const char* name, int* number);

CACHALOT_EXPORT int cachalot_plug_pool_create(const CachalotTensorSpec* spec, const CachalotPoolOptions* options,
                                              cachalot::TensorPool** pool);
// Tensors that are out stay valid.
CACHALOT_EXPORT void cachalot_plug_pool_destroy(cachalot::TensorPool* pool);
// `seconds` < 0: as the pool's when_empty says. Otherwise it waits at most so long for a tensor to come back: the lease is
// NULL where none did.
CACHALOT_EXPORT int cachalot_plug_pool_acquire(cachalot::TensorPool* pool, cachalot::Stream stream, double seconds,
                                               CachalotLease** lease);
// Until at most `keep` slots are free; `bytes` of memory went back to the allocator.
CACHALOT_EXPORT int cachalot_plug_pool_trim(cachalot::TensorPool* pool, std::size_t keep, std::size_t* bytes);
// PoolStats' fields.
CACHALOT_EXPORT char* cachalot_plug_pool_json(const cachalot::TensorPool* pool);

CACHALOT_EXPORT int cachalot_plug_pool_set_create(std::size_t byte_budget, const CachalotPoolOptions* options,
                                                  cachalot::PoolSet** pools);
CACHALOT_EXPORT void cachalot_plug_pool_set_destroy(cachalot::PoolSet* pools);
// PoolSet::acquire, or try_acquire, after which the lease may be NULL.
CACHALOT_EXPORT int cachalot_plug_pool_set_acquire(cachalot::PoolSet* pools, const CachalotTensorSpec* spec,
                                                   cachalot::Stream stream, int only_try, CachalotLease** lease);
CACHALOT_EXPORT int cachalot_plug_pool_set_trim(cachalot::PoolSet* pools, std::size_t* bytes);
// {"all": PoolStats' fields, "by_spec": [{"shape", "dtype", "device", "stats"}, …]}, the least recently used first.
CACHALOT_EXPORT char* cachalot_plug_pool_set_json(const cachalot::PoolSet* pools);

// Returns a DLPack capsule of the tensor, "dltensor_versioned" or "dltensor", as a new reference; NULL with Python's
// MemoryError set. The capsule is a holder until it has a consumer, which is one then. cachalot_plug_use_python comes
// first.
CACHALOT_EXPORT void* cachalot_plug_lease_capsule(const CachalotLease* lease, int versioned);
// PooledTensor::share_with and record_stream.
CACHALOT_EXPORT int cachalot_plug_lease_share(const CachalotLease* lease, cachalot::Stream stream);
CACHALOT_EXPORT int cachalot_plug_lease_record(const CachalotLease* lease, cachalot::Stream stream);
// Returns the number of holders of the tensor beside this lease.
CACHALOT_EXPORT long cachalot_plug_lease_others(const CachalotLease* lease);
CACHALOT_EXPORT void cachalot_plug_lease_drop(CachalotLease* lease);

// The functions of Python's C API that capsules need. The library is not linked with Python; the interpreter that calls
// it says where they are.
CACHALOT_EXPORT void cachalot_plug_use_python(void* capsule_new, void* capsule_is_valid, void* capsule_get_pointer,
                                              void* err_no_memory);
}
