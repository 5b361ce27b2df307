#include "pytorch/plug/pool_hooks.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/json_writer.h"
#include "c_api/last_error.h"
#include "cachalot/dlpack.h"
#include "pool/dlpack_abi.h"
#include "pytorch/plug/process_allocator.h"

namespace cachalot {
namespace {

constexpr double kLongestWaitSeconds = 365 * 24 * 3600.0;  // beyond that a clock's count would overflow

TensorSpec to_spec(const CachalotTensorSpec& spec) {
  return {{spec.shape, spec.shape + spec.dimensions}, static_cast<DType>(spec.dtype), spec.device};
}

TensorPoolOptions to_options(const CachalotPoolOptions& options) {
  TensorPoolOptions result;
  result.initial_slots = options.initial_slots;
  result.max_slots = options.max_slots;
  result.growth_step = options.growth_step;
  result.when_empty = static_cast<WhenEmpty>(options.when_empty);
  result.other_stream = static_cast<OtherStream>(options.other_stream);
  result.on_reuse = static_cast<OnReuse>(options.on_reuse);
  if (options.high_water >= 0) result.high_water = static_cast<std::size_t>(options.high_water);
  result.alignment = options.alignment;
  result.stream = options.stream;
  return result;
}

// A pool's answer as a lease; NULL where there is none.
CachalotLease* lend(std::optional<PooledTensor> tensor) {
  return tensor ? new CachalotLease(LentTensors::instance().lend(std::move(*tensor))) : nullptr;
}

std::optional<PooledTensor> acquire(TensorPool& pool, Stream stream, double seconds) {
  if (seconds < 0) return pool.acquire(stream);
  const std::chrono::duration<double> timeout(std::min(seconds, kLongestWaitSeconds));
  return pool.acquire_for(std::chrono::duration_cast<std::chrono::nanoseconds>(timeout), stream);
}

std::optional<PooledTensor> acquire(PoolSet& pools, const TensorSpec& spec, Stream stream, bool only_try) {
  if (only_try) return pools.try_acquire(spec, stream);
  return pools.acquire(spec, stream);
}

std::string to_json(const PoolSet& pools) {
  JsonWriter json;
  json.begin_object().key("all").raw(to_json(pools.stats()));
  json.key("by_spec").list(pools.stats_by_spec(), [](JsonWriter& list, const auto& entry) {
    const auto& [spec, stats] = entry;
    list.begin_object().key("shape").list(spec.shape);
    list.member("dtype", to_string(spec.dtype)).member("device", spec.device);
    list.key("stats").raw(to_json(stats)).end_object();
  });
  return json.end_object().take();
}

// DLPack's Python protocol: a tensor in a capsule, whose name says whether it was taken.
//
// Callers hold Python's lock (GIL), as does the code that lets a capsule die. Nothing here runs Python code, and
// neither does the deleter of a consumer's tensor: both may come while the interpreter shuts down.

// Python's C API, as far as it is needed; objects are void*.
struct CapsuleFunctions {
  void* (*capsule_new)(void* pointer, const char* name, void (*destructor)(void* capsule));
  int (*capsule_is_valid)(void* capsule, const char* name);
  void* (*capsule_get_pointer)(void* capsule, const char* name);
  void* (*err_no_memory)();
};
CapsuleFunctions python_functions = {};

// A consumer that takes a capsule's tensor gives the capsule another name.
template <typename Managed>
struct Capsule;
template <>
struct Capsule<DLManagedTensorVersioned> {
  static constexpr const char* kName = "dltensor_versioned";
};
template <>
struct Capsule<DLManagedTensor> {
  static constexpr const char* kName = "dltensor";
};

template <typename Managed>
void drop_unless_taken(void* capsule) {
  constexpr const char* kName = Capsule<Managed>::kName;
  if (python_functions.capsule_is_valid(capsule, kName) == 0) return;
  auto* const managed = static_cast<Managed*>(python_functions.capsule_get_pointer(capsule, kName));
  managed->deleter(managed);
}

template <typename Managed>
void* wrap(Managed* managed) {
  void* const capsule = python_functions.capsule_new(managed, Capsule<Managed>::kName, &drop_unless_taken<Managed>);
  if (capsule == nullptr) managed->deleter(managed);
  return capsule;
}

// Returns a new reference to a capsule "dltensor_versioned", or "dltensor" as consumers from before DLPack 1.0 take it.
// A capsule that was not taken gives the tensor up as it dies. NULL, with MemoryError set, where there is no host
// memory.
void* make_capsule(std::shared_ptr<PooledTensor> tensor, bool versioned) {
  try {
    if (versioned) return wrap(to_dlpack(std::move(tensor)));
    return wrap(to_dlpack_unversioned(std::move(tensor)));
  } catch (const std::bad_alloc&) {
    return python_functions.err_no_memory();
  }
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

int cachalot_plug_dtype(const char* name, int* number) {
  return guarded([&] { *number = static_cast<int>(dtype_named(name)); });
}

int cachalot_plug_pool_create(const CachalotTensorSpec* spec, const CachalotPoolOptions* options, TensorPool** pool) {
  return guarded([&] { *pool = new TensorPool(process_allocator(), to_spec(*spec), to_options(*options)); });
}

void cachalot_plug_pool_destroy(TensorPool* pool) { delete pool; }

int cachalot_plug_pool_acquire(TensorPool* pool, Stream stream, double seconds, CachalotLease** lease) {
  return guarded([&] { *lease = lend(acquire(*pool, stream, seconds)); });
}

int cachalot_plug_pool_trim(TensorPool* pool, std::size_t keep, std::size_t* bytes) {
  return guarded([&] { *bytes = pool->trim(keep); });
}

char* cachalot_plug_pool_json(const TensorPool* pool) {
  return text_or_null([&] { return to_json(pool->stats()); });
}

int cachalot_plug_pool_set_create(std::size_t byte_budget, const CachalotPoolOptions* options, PoolSet** pools) {
  return guarded([&] { *pools = new PoolSet(process_allocator(), byte_budget, to_options(*options)); });
}

void cachalot_plug_pool_set_destroy(PoolSet* pools) { delete pools; }

int cachalot_plug_pool_set_acquire(PoolSet* pools, const CachalotTensorSpec* spec, Stream stream, int only_try,
                                   CachalotLease** lease) {
  return guarded([&] { *lease = lend(acquire(*pools, to_spec(*spec), stream, only_try != 0)); });
}

int cachalot_plug_pool_set_trim(PoolSet* pools, std::size_t* bytes) {
  return guarded([&] { *bytes = pools->trim(); });
}

char* cachalot_plug_pool_set_json(const PoolSet* pools) {
  return text_or_null([&] { return to_json(*pools); });
}

void* cachalot_plug_lease_capsule(const CachalotLease* lease, int versioned) {
  return make_capsule(LentTensor::pooled(*lease), versioned != 0);
}

int cachalot_plug_lease_share(const CachalotLease* lease, Stream stream) {
  return guarded([&] { (*lease)->share_with(stream); });
}

int cachalot_plug_lease_record(const CachalotLease* lease, Stream stream) {
  return guarded([&] { (*lease)->record_stream(stream); });
}

long cachalot_plug_lease_others(const CachalotLease* lease) { return lease->use_count() - 1; }

void cachalot_plug_lease_drop(CachalotLease* lease) { delete lease; }

void cachalot_plug_use_python(void* capsule_new, void* capsule_is_valid, void* capsule_get_pointer,
                              void* err_no_memory) {
  python_functions = {reinterpret_cast<decltype(CapsuleFunctions::capsule_new)>(capsule_new),
                      reinterpret_cast<decltype(CapsuleFunctions::capsule_is_valid)>(capsule_is_valid),
                      reinterpret_cast<decltype(CapsuleFunctions::capsule_get_pointer)>(capsule_get_pointer),
                      reinterpret_cast<decltype(CapsuleFunctions::err_no_memory)>(err_no_memory)};
}
