// Every call of the device that the plug-in's hooks make fails once: the caller receives the error, nothing is lost, and
// the same calls work afterwards. Runs with the simulated runtime preloaded, as PyTorch's process would.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cachalot/simulator.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/pool_hooks.h"
#include "tests/plug/streams_of_process.h"
#include "tests/plug/taken_text.h"

namespace cachalot {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

bool uses_pages() {
  const char* conf = std::getenv("CACHALOT_CONF");
  return conf != nullptr && std::string(conf).find("heap:pages") != std::string::npos;
}

// A process's calls of the hooks, once, with any failures.
class HookPlay {
 public:
  void play() {
    use_memory();
    use_memory_in_c();
    use_pool(++next_pool_);
    use_tag();
    use_tensor_pool();
    use_pool_set();
    ask();
    give_back();
  }

  // Nothing fails any more.
  void finish() {
    give_back();
    EXPECT_TRUE(live_.empty());
    drop_leases();
    cachalot_reset();
    const nlohmann::json now = taken(cachalot_memory_stats_json(0));
    EXPECT_EQ(now.at("allocated_bytes.all.current"), 0);
    EXPECT_EQ(now.at("reserved_bytes.all.current"), 0);
    EXPECT_EQ(cachalot_sim_used_bytes(0), 0);
  }

  int failures() const { return failures_; }

 private:
  struct Live {
    void* ptr;
    std::size_t bytes;
    cudaStream_t stream;
  };

  // Hooks throw; whatever they throw has a text, and comes only when a call was made to fail.
  template <typename Call>
  bool attempt(Call&& call) {
    const std::int64_t faults = cachalot_sim_faults_injected(0);
    try {
      call();
      return true;
    } catch (const std::exception& error) {
      EXPECT_STRNE(error.what(), "");
      EXPECT_GT(cachalot_sim_faults_injected(0), faults) << error.what();
      ++failures_;
      return false;
    }
  }
  // Others return a code, or null, and say why.
  template <typename Call>
  bool succeeds(Call&& call) {
    const std::int64_t faults = cachalot_sim_faults_injected(0);
    const int code = call();
    if (code == CACHALOT_OK) return true;
    EXPECT_STRNE(cachalot_last_error(), "");
    EXPECT_EQ(cachalot_last_error_code(), code);
    EXPECT_GT(cachalot_sim_faults_injected(0), faults) << cachalot_last_error();
    ++failures_;
    return false;
  }
  static int code_of(bool succeeded) { return succeeded ? CACHALOT_OK : cachalot_last_error_code(); }

  void allocate(std::size_t bytes, cudaStream_t stream) {
    attempt([&] {
      void* ptr = cachalot_malloc(bytes, 0, stream);
      ASSERT_NE(ptr, nullptr);
      live_.push_back({ptr, bytes, stream});
    });
  }
  void give_back() {
    std::erase_if(
        live_, [&](const Live& live) { return attempt([&] { cachalot_free(live.ptr, live.bytes, 0, live.stream); }); });
  }

  void use_memory() {
    allocate(1000, streams_[0]);
    allocate(4 * kMiB, streams_[0]);
    allocate(30 * kMiB, streams_[1]);
    for (const Live& live : live_) {
      attempt([&] {
        std::size_t bytes = 0;
        EXPECT_NE(cachalot_base_alloc(live.ptr, &bytes), nullptr);
        EXPECT_GE(bytes, live.bytes);
        cachalot_record_stream_hook(live.ptr, streams_[2]);
        cachalot_sim_launch(streams_[2], 1'000'000);
      });
    }
    give_back();
    attempt([&] { cachalot_set_memory_fraction_hook(0.5, 0); });
    for (int i = 0; i < 3; ++i) allocate(7 * kMiB, streams_[0]);
    attempt([&] { cachalot_set_memory_fraction_hook(1.0, 0); });
    attempt([&] { cachalot_reset(); });
    unsigned before = 0;
    succeeds([&] { return cachalot_plug_place(CACHALOT_CONTIGUOUS, &before); });
    allocate(3 * kMiB, streams_[1]);
    succeeds([&] { return cachalot_plug_place(0, &before); });
  }

  // Programs in C may share the allocator.
  void use_memory_in_c() {
    for (const unsigned flags : {0u, unsigned{CACHALOT_CONTIGUOUS}, unsigned{CACHALOT_PLAIN}}) {
      void* ptr = nullptr;
      const bool done = succeeds(
          [&] { return code_of((ptr = cachalot_malloc_with_flags(3 * kMiB, 0, streams_[0], flags)) != nullptr); });
      if (!done) continue;
      live_.push_back({ptr, 3 * kMiB, streams_[0]});
      succeeds([&] { return cachalot_record_stream(ptr, streams_[1]); });
    }
    give_back();
    void* ptr = nullptr;
    if (succeeds([&] { return code_of((ptr = cachalot_malloc_aligned(kMiB, 4096, 0, streams_[1])) != nullptr); }))
      live_.push_back({ptr, kMiB, streams_[1]});
    give_back();
  }

  void use_pool(unsigned long long number) {
    const std::pair<unsigned long long, unsigned long long> pool{0, number};
    if (!attempt([&] { cachalot_begin_allocate_to_pool(0, pool, [](Stream) { return true; }); })) return;
    allocate(2000, streams_[0]);
    allocate(12 * kMiB, streams_[0]);
    EXPECT_TRUE(attempt([&] { cachalot_end_allocate_to_pool(0, pool); }));
    give_back();
    EXPECT_TRUE(attempt([&] { cachalot_release_pool(0, pool); }));
  }

  void use_tag() {
    if (!uses_pages()) return;
    if (!succeeds([] { return cachalot_begin_tagged("weights", -1); })) return;
    allocate(5 * kMiB, streams_[0]);
    EXPECT_TRUE(succeeds([] { return cachalot_end_tagged("weights", -1); }));
    succeeds([] { return cachalot_plug_release_physical("weights", 0, 0, 1, nullptr); });
    const auto restore = [] { return cachalot_restore_physical("weights", -1); };
    // A call that failed goes on when it is called again.
    if (!succeeds(restore)) {
      EXPECT_TRUE(succeeds(restore));
    }
    give_back();
  }

  CachalotPoolOptions pool_options(std::size_t initial_slots) const {
    return {.initial_slots = initial_slots,
            .max_slots = 6,
            .growth_step = 2,
            .when_empty = 0,
            .other_stream = 0,
            .on_reuse = 1,
            .high_water = -1,
            .alignment = 512,
            .stream = streams_[0]};
  }
  CachalotTensorSpec spec() const { return {kShape.data(), static_cast<int>(kShape.size()), 0, 0}; }

  void use_tensor_pool() {
    TensorPool* pool = nullptr;
    const CachalotPoolOptions options = pool_options(1);
    const CachalotTensorSpec kind = spec();
    if (!succeeds([&] { return cachalot_plug_pool_create(&kind, &options, &pool); })) {
      return;
    }
    for (const cudaStream_t stream : {streams_[0], streams_[1], streams_[0]}) {
      take_lease([&](CachalotLease** lease) { return cachalot_plug_pool_acquire(pool, stream, -1, lease); });
    }
    use_leases();
    take_lease([&](CachalotLease** lease) { return cachalot_plug_pool_acquire(pool, streams_[2], -1, lease); });
    drop_leases();
    std::size_t bytes = 0;
    succeeds([&] { return cachalot_plug_pool_trim(pool, 0, &bytes); });
    cachalot_plug_pool_destroy(pool);
  }

  void use_pool_set() {
    PoolSet* pools = nullptr;
    const CachalotPoolOptions options = pool_options(0);
    const CachalotTensorSpec kind = spec();
    if (!succeeds([&] { return cachalot_plug_pool_set_create(8 * kMiB, &options, &pools); })) {
      return;
    }
    for (int i = 0; i < 2; ++i) {
      take_lease(
          [&](CachalotLease** lease) { return cachalot_plug_pool_set_acquire(pools, &kind, streams_[1], i, lease); });
    }
    drop_leases();
    std::size_t bytes = 0;
    succeeds([&] { return cachalot_plug_pool_set_trim(pools, &bytes); });
    cachalot_plug_pool_set_destroy(pools);
  }

  template <typename Acquire>
  void take_lease(Acquire&& acquire) {
    CachalotLease* lease = nullptr;
    const bool done = succeeds([&] { return acquire(&lease); });
    if (done && lease != nullptr) leases_.push_back(lease);
  }
  void use_leases() {
    for (CachalotLease* lease : leases_) {
      succeeds([&] { return cachalot_plug_lease_share(lease, streams_[2]); });
      succeeds([&] { return cachalot_plug_lease_record(lease, streams_[1]); });
    }
  }
  void drop_leases() {
    for (CachalotLease* lease : leases_) cachalot_plug_lease_drop(lease);
    leases_.clear();
  }

  void ask() {
    const auto is_told = [](char* text) {
      const int code = code_of(text != nullptr);
      cachalot_string_free(text);
      return code;
    };
    succeeds([&] { return is_told(cachalot_memory_stats_json(0)); });
    succeeds([&] { return is_told(cachalot_snapshot_json()); });
    cachalot_fragmentation_t figures;
    succeeds([&] { return cachalot_fragmentation(0, &figures); });
    succeeds([] { return cachalot_empty_cache(-1); });
    succeeds([] { return cachalot_reset_peak_memory_stats(0); });
  }

  static constexpr std::array<std::int64_t, 2> kShape = {256, 1024};
  const std::array<cudaStream_t, 3> streams_ = streams_of_process();
  std::vector<Live> live_;
  std::vector<CachalotLease*> leases_;
  int failures_ = 0;
  static inline unsigned long long next_pool_ = 0;
};

// Returns the number of calls that were made to fail, one per play; `how` is the text of `faults` of CACHALOT_SIM
// behind the number.
std::int64_t sweep(const std::string& how) {
  for (std::int64_t nth = 1;; ++nth) {
    HookPlay hooks;
    EXPECT_EQ(cachalot_sim_set_faults(0, fmt::format("any:{}{}", nth, how).c_str()), 0);
    const std::int64_t before = cachalot_sim_faults_injected(0);
    hooks.play();
    const std::int64_t injected = cachalot_sim_faults_injected(0) - before;
    EXPECT_EQ(cachalot_sim_set_faults(0, ""), 0);
    hooks.finish();
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "when call " << nth << " fails" << how;
      return nth;
    }
    if (injected == 0) return nth - 1;
  }
}

TEST(EveryDeviceCallOfTheHooks, MayFailOnce) {
  HookPlay without_faults;
  without_faults.play();
  EXPECT_EQ(without_faults.failures(), 0);
  without_faults.finish();
  const std::int64_t faults = sweep("") + sweep(":error=999");
  EXPECT_GT(faults, 100);
  fmt::print("{} calls were made to fail\n", faults);
}

}  // namespace
}  // namespace cachalot
