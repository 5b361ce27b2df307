// Plays a program on an allocator as a well-behaved user would, whatever fails, and says where the allocator misbehaves.
//
// It uses memory on its own stream at once, and on others after they have waited and record_stream was called. The
// simulated device's hazard checker checks the memory that it gets. After every operation it expects that
//   - nothing was thrown but OutOfMemory, std::bad_alloc and CudaError where operator new or a call of the device was made to
//     fail, and InvalidArgument where the program made a mistake;
//   - the allocator counts as many live allocations as the player holds: a call that failed has changed nothing;
//   - the statistics are those of the snapshot (every validate_every operations, with validate());
//   - tagged memory that slept holds what was saved;
// and at the end, when nothing fails any more, that all memory goes back and validate() is clean.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tests/programs/program.h"

namespace cachalot {

class Player {
 public:
  struct Config {
    LatencyModel latency = LatencyModel::none();
    std::size_t validate_every = 1;  // operations; 0: at the end alone
    // Returns what the allocator has in place of a simulated device. May be empty: then it has that device.
    std::function<std::shared_ptr<Device>(const std::shared_ptr<SimulatedDevice>&)> wrap = nullptr;
    // Hears true before each call of the allocator that may fail, and false after it.
    std::function<void(bool calls)> around = nullptr;
  };
  // The program's devices and options; its operations are the caller's to step through.
  Player(const Program& program, const Config& config);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  // Each returns "" or what is wrong.
  std::string step(const Operation& operation);
  std::string finish();  // nothing fails from here on; the last call

  const CachingAllocator& allocator() const { return *allocator_; }
  const SimulatedDevice& device(int index = 0) const { return *devices_[static_cast<std::size_t>(index)]; }
  std::uint64_t faults_injected() const;
  std::size_t times_out_of_memory() const { return times_out_of_memory_; }
  std::size_t times_woken() const { return times_woken_; }
  std::size_t restored() const { return restored_; }

 private:
  using Name = std::uint64_t;
  struct Live {
    void* ptr = nullptr;
    int device = 0;
    std::size_t bytes = 0;
    std::uint64_t home = 0;                            // its stream
    std::array<bool, kProgramStreams> used_on = {};    // announced
    PoolId pool = {};                                  // that it was asked for in; none: the default one
    bool tagged = false;                               // sleeps when the tag does
    bool given_back = false;                           // its free has failed, or it sleeps: it is not used any more
    std::optional<std::uint64_t> mark = std::nullopt;  // at its start
  };
  struct Capture {
    PoolId pool;
    Stream stream;
  };
  struct Pool {
    int users = 0;
    bool redirects = false;
  };
  struct Checkpoint {
    PoolCheckpoint state;
    std::map<void*, Live> live;
  };
  // The state of one device.
  struct Place {
    std::array<Stream, kProgramStreams> streams = {};
    std::optional<Capture> capture;
    std::map<PoolId, Pool> pools;
    std::map<PoolId, Checkpoint> checkpoints;
  };

  enum class Mistakes { forbidden, allowed };
  // Returns whether the action came to its end; `trouble_` names an exception that it must not throw.
  bool attempt(const std::function<void()>& action, Mistakes mistakes = Mistakes::forbidden);
  bool attempt_on_device(const std::function<void()>& action, Mistakes mistakes = Mistakes::forbidden);
  void tell(bool calls) const;
  void trouble(std::string text);

  void apply(const Operation& operation);
  void allocate(const Operation& operation, bool tagged, const AllocateOptions& options = {});
  void expect_place(const Live& live, const AllocateOptions& options);
  void deallocate(Name name, const Operation* sized = nullptr);
  void free_all(const std::function<bool(const Live&)>& which);
  void use(Live& live, std::uint64_t stream, std::uint64_t ns);
  void announce(Live& live, std::uint64_t stream);
  bool order(int device, std::uint64_t earlier, std::uint64_t later);
  void sleep(bool save);
  void wake();
  void mark(Live& live);
  void expect_mark(const Live& live);
  void begin_capture(int device, PoolId pool, std::uint64_t stream);
  void end_capture(int device);
  void apply_to_pool(const Operation& operation);
  void release_pools();
  void checkpoint(int device, PoolId pool);
  void restore(int device, PoolId pool);
  void misuse(const Live& live, Misuse how);
  void fail(const Operation& operation);
  bool free_donations();

  bool captures() const;
  bool has_tagged() const;
  PoolId pool_for(int device, Stream stream) const;
  void check_counts();
  void check_tables();

  SimulatedDevice& simulated(int index) { return *devices_[static_cast<std::size_t>(index)]; }
  Place& place(int index) { return places_[static_cast<std::size_t>(index)]; }
  Stream stream_of(int device, std::uint64_t stream) { return place(device).streams[stream]; }
  AddressRange range(const Live& live) const { return {reinterpret_cast<Address>(live.ptr), live.bytes}; }

  const Config config_;
  std::vector<std::shared_ptr<SimulatedDevice>> devices_;
  std::unique_ptr<CachingAllocator> allocator_;
  const bool may_sleep_;
  const bool caches_;
  std::array<Place, 2> places_;
  std::map<Name, Live> live_;
  std::set<Name> donated_;
  bool asleep_ = false, saved_ = false;
  std::uint64_t next_mark_ = 1;
  Name next_restored_ = Name{1} << 40;
  std::size_t steps_ = 0, times_out_of_memory_ = 0, times_woken_ = 0, restored_ = 0;
  std::string trouble_;
};

// Plays all of it, to the end. Returns "" or the first operation that went wrong, and how.
std::string play(const Program& program, Player& player);
std::string play(const Program& program, const Player::Config& config = {});

}  // namespace cachalot
