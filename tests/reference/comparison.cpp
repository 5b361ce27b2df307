#include "tests/reference/comparison.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tests/reference/accounting.h"
#include "tests/reference/reference_heap.h"

namespace cachalot {
namespace {

using Kind = Operation::Kind;

Stream stream_of(std::uint64_t number) { return reinterpret_cast<Stream>(number * 64); }  // 0: the default stream
PoolId pool_of(std::uint64_t name) { return {0, name}; }
PoolId graph_pool_of(std::uint64_t name) { return {name, 0}; }

// ---- The two allocators side by side

class Comparison {
 public:
  explicit Comparison(const Program& program)
      : options_(parse_options(program.options)), devices_(make_devices(program)), allocator_(devices_, options_) {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      models_.push_back(std::make_unique<ReferenceHeap>(program.device_mib[i] * kMiB, options_));
      folds_.emplace_back(options_.max_split_size);
    }
    allocator_.add_change_tracker(
        [this](const Change& change) { folds_[static_cast<std::size_t>(change.device)](change); });
    show_streams_in_order();
    allocator_.add_free_memory_callback([this] { return free_donations(donated_, &Comparison::free_ours); });
    for (auto& each : models_) {
      each->set_free_memory_callback([this] { return free_donations(donated_to_models_, &Comparison::free_models); });
    }
  }

  // "" or the difference after this operation.
  std::string step(const Operation& operation) {
    const std::string trouble = apply(operation);
    if (!trouble.empty()) return trouble;
    ++steps_;
    return compare();
  }

 private:
  using Devices = std::vector<std::shared_ptr<Device>>;
  struct Live {
    void* ptr;
    int device;
    std::uint64_t stream;
    std::size_t bytes;
  };

  static Devices make_devices(const Program& program) {
    Devices devices;
    for (const std::size_t mib : program.device_mib) {
      SimulatedDevice::Config config;
      config.index = static_cast<int>(devices.size());
      config.memory_bytes = mib * kMiB;
      config.latency = LatencyModel::none();
      devices.push_back(std::make_shared<SimulatedDevice>(config));
    }
    return devices;
  }

  // The order in which streams are queried is not specified (PyTorch's is a hash table's), but it shows in
  // inactive_split's sums. Both sides ask in the order they met the streams: 0, 1, 2, 3 from here on.
  void show_streams_in_order() {
    for (int index = 0; index < allocator_.device_count(); ++index) {
      for (std::uint64_t stream = 0; stream < kProgramStreams; ++stream) {
        const std::uint64_t home = (stream + 1) % kProgramStreams;
        const std::uint64_t name = ~stream;
        apply({Kind::allocate, index, name, home, 512});
        apply({Kind::record_stream, index, name, stream, 0});
        apply({Kind::deallocate, index, name, 0, 0});
      }
      apply({Kind::empty_cache, index, 0, 0, 0});
    }
  }

  SimulatedDevice& device(int index) {
    return static_cast<SimulatedDevice&>(*devices_[static_cast<std::size_t>(index)]);
  }
  ReferenceHeap& model(int index) { return *models_[static_cast<std::size_t>(index)]; }

  std::string apply(const Operation& operation) {
    const int index = operation.device;
    const PoolId pool = pool_of(operation.name);
    const Stream stream = stream_of(operation.stream);
    ReferenceHeap& heap = model(index);
    switch (operation.kind) {
      case Kind::allocate:
        return allocate(operation);
      case Kind::deallocate:
      case Kind::deallocate_sized:
        deallocate(operation);
        break;
      case Kind::record_stream:
        if (const auto found = live_.find(operation.name); found != live_.end()) {
          allocator_.record_stream(found->second.ptr, stream);
          model(found->second.device).record_stream(operation.name, stream);
        }
        break;
      case Kind::launch:
        if (heap.captures(stream)) break;  // would be part of the graph
        device(index).launch(stream, static_cast<std::int64_t>(operation.amount));
        heap.launch(stream, static_cast<std::int64_t>(operation.amount));
        break;
      case Kind::advance:
        device(index).advance(static_cast<std::int64_t>(operation.amount));
        heap.advance(static_cast<std::int64_t>(operation.amount));
        break;
      case Kind::empty_cache:
        allocator_.empty_cache(index);
        heap.empty_cache();
        break;
      case Kind::empty_all_caches:
        allocator_.empty_cache();
        for (auto& each : models_) each->empty_cache();
        break;
      case Kind::set_memory_fraction: {
        const double fraction = static_cast<double>(operation.amount) / 1000;
        allocator_.set_memory_fraction(fraction, index);
        heap.set_memory_fraction(fraction);
        break;
      }
      case Kind::configure:
        configure(kProgramOptions[operation.amount]);
        break;
      case Kind::reset_peak:
        allocator_.reset_peak_stats(index);
        heap.reset_peak_stats();
        folds_[static_cast<std::size_t>(index)].reset_peak();
        break;
      case Kind::reset_accumulated:
        allocator_.reset_accumulated_stats(index);
        heap.reset_accumulated_stats();
        folds_[static_cast<std::size_t>(index)].reset_accumulated();
        break;
      case Kind::create_pool:
        if (heap.pool_exists(pool)) break;
        allocator_.create_or_retain_pool(index, pool);
        heap.create_or_retain_pool(pool);
        break;
      case Kind::begin_pool:
        if (heap.pool_users(pool) == 0 || heap.allocates_to(pool)) break;
        allocator_.begin_allocate_to_pool(
            index, pool, [self = std::this_thread::get_id()](Stream) { return std::this_thread::get_id() == self; },
            RedirectFor::thread);
        heap.begin_allocate_to_pool(pool);
        break;
      case Kind::end_pool:
        if (!heap.allocates_to(pool)) break;
        allocator_.end_allocate_to_pool(index, pool);
        allocator_.release_pool(index, pool);
        heap.end_allocate_to_pool(pool);
        heap.release_pool(pool);
        break;
      case Kind::release_pool:
        if (heap.pool_users(pool) != 1 || heap.allocates_to(pool)) break;
        allocator_.set_use_on_oom(index, pool, false);
        heap.set_use_on_oom(pool, false);
        allocator_.release_pool(index, pool);
        heap.release_pool(pool);
        break;
      case Kind::set_no_split:
        if (heap.pool_users(pool) == 0) break;
        allocator_.set_no_split(index, pool);
        heap.set_no_split(pool);
        break;
      case Kind::set_use_on_oom:
        if (heap.pool_users(pool) == 0) break;
        allocator_.set_use_on_oom(index, pool, operation.amount != 0);
        heap.set_use_on_oom(pool, operation.amount != 0);
        break;
      case Kind::empty_pool:
        if (!heap.pool_exists(pool)) break;
        allocator_.empty_cache(index, pool);
        heap.empty_cache(pool);
        break;
      case Kind::begin_capture:
        begin_capture(index, graph_pool_of(operation.name), stream);
        break;
      case Kind::end_capture:
        end_capture(index);
        break;
      case Kind::donate:
        if (live_.count(operation.name) == 0) break;
        donated_.insert(operation.name);
        donated_to_models_.insert(operation.name);
        break;
      default:  // the reference knows no such thing
        break;
    }
    return {};
  }

  std::string allocate(const Operation& operation) {
    const Stream stream = stream_of(operation.stream);
    if (live_.count(operation.name) > 0) return {};
    const auto expected = model(operation.device).allocate(operation.name, operation.amount, stream);
    void* ptr = nullptr;
    try {
      ptr = allocator_.allocate(operation.amount, operation.device, stream);
    } catch (const OutOfMemory&) {
      return expected ? "out of memory where there is enough" : "";
    }
    if (donated_ != donated_to_models_) return "the callback was asked on one side only";
    live_[operation.name] = {ptr, operation.device, operation.stream, operation.amount};
    if (!expected) return "an allocation where there is no memory left";
    if (allocator_.requested_size(ptr) != operation.amount) return "requested_size is not what was asked for";
    if (allocator_.device_of(ptr) != operation.device) return "device_of is not the device asked";
    return compare_place(operation.device, ptr, *expected);
  }

  // Frees donated blocks when the allocator asks for them: on each side when that side asks.
  bool free_donations(std::set<std::uint64_t>& donations, void (Comparison::*free)(std::uint64_t)) {
    const std::set<std::uint64_t> names = std::exchange(donations, {});
    for (const std::uint64_t name : names) (this->*free)(name);
    return !names.empty();
  }
  void free_models(std::uint64_t name) { model(live_.at(name).device).deallocate(name); }
  void free_ours(std::uint64_t name) {
    const auto found = live_.find(name);
    void* ptr = found->second.ptr;
    live_.erase(found);
    allocator_.deallocate(ptr);
  }

  void begin_capture(int index, PoolId pool, Stream stream) {
    auto& capture = captures_[static_cast<std::size_t>(index)];
    if (capture || stream == nullptr) return;
    const std::uint64_t id = device(index).begin_capture(stream);
    allocator_.begin_allocate_to_pool(
        index, pool, [this, index, id](Stream asked) { return device(index).capture_status(asked).id == id; },
        RedirectFor::capture);
    model(index).begin_capture(pool, stream);
    capture = {pool, stream};
  }

  void end_capture(int index) {
    auto& capture = captures_[static_cast<std::size_t>(index)];
    if (!capture) return;
    device(index).end_capture(capture->stream);
    allocator_.end_allocate_to_pool(index, capture->pool);
    model(index).end_capture(capture->pool);
    capture.reset();
  }

  // Segments are the same when they were made in the same order; their addresses ascend on both sides.
  std::string compare_place(int index, void* ptr, const ReferenceHeap::Place& expected) {
    const CachingAllocator::Range segment = allocator_.base_allocation(ptr);
    auto& bases = bases_[static_cast<std::size_t>(index)];
    const auto [known, is_new] = bases.try_emplace(expected.segment, segment.base);
    if (known->second != segment.base) return fmt::format("another segment than number {}", expected.segment);
    if (is_new && known != bases.begin() && std::prev(known)->second >= segment.base)
      return "a segment at a lower address";
    const std::size_t offset = reinterpret_cast<Address>(ptr) - reinterpret_cast<Address>(segment.base);
    if (segment.bytes != expected.segment_bytes) {
      return fmt::format("a segment of {} bytes, not {}", segment.bytes, expected.segment_bytes);
    }
    if (offset != expected.offset) return fmt::format("offset {}, not {}", offset, expected.offset);
    return {};
  }

  void deallocate(const Operation& operation) {
    const auto found = live_.find(operation.name);
    if (found == live_.end()) return;
    const Live live = found->second;
    live_.erase(found);
    donated_.erase(operation.name);
    donated_to_models_.erase(operation.name);
    if (operation.kind == Kind::deallocate) {
      allocator_.deallocate(live.ptr);
    } else {
      model(live.device).record_stream(operation.name, stream_of(operation.stream));
      allocator_.deallocate(live.ptr, live.bytes, live.device, stream_of(operation.stream));
    }
    model(live.device).deallocate(operation.name);
  }

  void configure(const char* text) {
    allocator_.configure(text);
    options_ = parse_options(text, options_);
    for (auto& each : models_) each->configure(options_);
    for (StatsFold& fold : folds_) fold.max_split_size = options_.max_split_size;
  }

  std::string compare() {
    for (int index = 0; index < allocator_.device_count(); ++index) {
      const DeviceStats stats = allocator_.memory_stats(index);
      const std::string differs = difference(stats, model(index).stats());
      if (!differs.empty()) return fmt::format("device {}: ", index) + differs;
      const std::string folded = difference(stats, folds_[static_cast<std::size_t>(index)].stats);
      if (!folded.empty()) return fmt::format("device {}, against the fold of its changes: ", index) + folded;
      if (device(index).clock_ns() != model(index).now_ns()) {
        return fmt::format("device {}: the host waited until {} ns, not {}", index, device(index).clock_ns(),
                           model(index).now_ns());
      }
      if (device(index).used_bytes() != model(index).device_used_bytes()) return "the device holds other memory";
    }
    if (const std::string broken = allocator_.validate(); !broken.empty()) return "validate: " + broken;
    return steps_ % 64 == 0 ? compare_pictures() : "";
  }

  std::string compare_pictures() {
    const Snapshot snapshot = allocator_.snapshot();
    for (int index = 0; index < allocator_.device_count(); ++index) {
      const std::string counted = difference(only_current(allocator_.memory_stats(index)), recount(snapshot, index));
      if (!counted.empty()) return fmt::format("device {}, against a count of its snapshot: ", index) + counted;
      if (allocator_.largest_available(index, false) != model(index).largest_free())
        return "another largest free block";
    }
    return {};
  }

  Options options_;
  Devices devices_;
  std::vector<StatsFold> folds_;
  CachingAllocator allocator_;
  std::vector<std::unique_ptr<ReferenceHeap>> models_;
  std::map<std::uint64_t, Live> live_;
  std::set<std::uint64_t> donated_, donated_to_models_;
  struct Capture {
    PoolId pool;
    Stream stream;
  };
  std::array<std::optional<Capture>, 2> captures_;
  std::array<std::map<std::size_t, void*>, 2> bases_;  // of segments, by number
  std::size_t steps_ = 0;
};

}  // namespace

std::string compare_with_reference(const Program& program) {
  Comparison comparison(program);
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    std::string trouble;
    try {
      trouble = comparison.step(program.operations[i]);
    } catch (const std::exception& error) {
      trouble = fmt::format("threw: {}", error.what());
    }
    if (!trouble.empty())
      return fmt::format("operation {} ({}): {}", i, to_string(program.operations[i].kind), trouble);
  }
  return {};
}

}  // namespace cachalot
