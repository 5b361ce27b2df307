#include "cachalot/c_api.h"

#if CACHALOT_HAS_CUDART
#include <cuda_runtime_api.h>  // after ours, to see that they get along
#endif
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/c_api/fresh_process.h"
#include "tests/c_api/testing.h"
#include "tests/sanitizers.h"

extern "C" int cachalot_c_program(void);

namespace cachalot::testing {
namespace {

constexpr std::size_t kExbibyte = std::size_t{1} << 60;

static_assert(std::is_same_v<cudaStream_t, CUstream_st*>, "CUDA's own type");

std::int64_t stat(const char* key, int device = 0) { return take_json(cachalot_memory_stats_json(device)).at(key); }

// The whole visible state of a device; calls that fail must leave it alone.
json state_of(int device) { return take_json(cachalot_memory_stats_json(device)); }

// Every function that works on a device, as a call that says whether it failed as documented with `code`.
struct DeviceFunction {
  const char* name;
  bool (*fails)(int device, int code);
};
const DeviceFunction kOneDeviceFunctions[] = {
    {"malloc", [](int device, int) { return cachalot_malloc(512, device, nullptr) == nullptr; }},
    {"memory_allocated", [](int device, int) { return cachalot_memory_allocated(device) == 0; }},
    {"memory_reserved", [](int device, int) { return cachalot_memory_reserved(device) == 0; }},
    {"max_memory_allocated", [](int device, int) { return cachalot_max_memory_allocated(device) == 0; }},
    {"max_memory_reserved", [](int device, int) { return cachalot_max_memory_reserved(device) == 0; }},
    {"set_memory_fraction", [](int device, int code) { return cachalot_set_memory_fraction(0.5, device) == code; }},
    {"fragmentation",
     [](int device, int code) {
       cachalot_fragmentation_t out;
       return cachalot_fragmentation(device, &out) == code;
     }},
    {"malloc_aligned", [](int device, int) { return cachalot_malloc_aligned(512, 1024, device, nullptr) == nullptr; }},
    {"malloc_with_flags",
     [](int device, int) { return cachalot_malloc_with_flags(512, device, nullptr, CACHALOT_CONTIGUOUS) == nullptr; }},
    {"open_shared",
     [](int device, int) {
       const cachalot_shared_t shared = {};
       return cachalot_open_shared(&shared, device) == nullptr;
     }},
    {"enable_peer_access", [](int device, int code) { return cachalot_enable_peer_access(device, 0) == code; }},
    {"memory_stats_json", [](int device, int) { return cachalot_memory_stats_json(device) == nullptr; }},
};
const DeviceFunction kAllDevicesFunctions[] = {
    {"empty_cache", [](int device, int code) { return cachalot_empty_cache(device) == code; }},
    {"drain_thread_caches", [](int device, int code) { return cachalot_drain_thread_caches(device) == code; }},
    {"reset_peak_memory_stats", [](int device, int code) { return cachalot_reset_peak_memory_stats(device) == code; }},
    {"reset_accumulated_memory_stats",
     [](int device, int code) { return cachalot_reset_accumulated_memory_stats(device) == code; }},
    {"begin_tagged", [](int device, int code) { return cachalot_begin_tagged("tag", device) == code; }},
};

void forget_last_error() {
  cachalot_free(nullptr, 0, 0, nullptr);
  ASSERT_EQ(last_error(), "");
}

// Runs the body once without thread caches and once with them, where malloc and free have a path of their own: the
// results must be equal. There are blocks in a cache at the beginning.
template <typename Body>
void in_fresh_processes(Environment environment, Body body) {
  for (const char* options : {"thread_cache:False", "thread_cache:True"}) {
    SCOPED_TRACE(options);
    environment["CACHALOT_CONF"] = options;
    in_fresh_process(environment, [&] {
      for (int i = 0; i < 3; ++i) cachalot_free(cachalot_malloc(1000, 0, nullptr), 1000, 0, nullptr);
      body();
    });
  }
}

// ---- The life of an allocation --------------------------------------------------------------------------------------

TEST(CApi, TellsItsVersion) { EXPECT_STREQ(cachalot_version(), CACHALOT_VERSION_STRING); }

TEST(CApi, AllocatesCountsFreesAndGivesBack) {
  in_fresh_process([] {
    void* const p = cachalot_malloc(3 * kMiB, 0, nullptr);
    ASSERT_NE(p, nullptr) << last_error();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 512, 0u);
    EXPECT_EQ(cachalot_memory_allocated(0), 3 * kMiB);
    EXPECT_EQ(cachalot_memory_reserved(0), 20 * kMiB);

    cachalot_free(p, 3 * kMiB, 0, nullptr);
    EXPECT_EQ(last_error(), "");
    EXPECT_EQ(cachalot_memory_allocated(0), 0u);
    EXPECT_EQ(cachalot_memory_reserved(0), 20 * kMiB);

    EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);
    EXPECT_EQ(cachalot_memory_reserved(0), 0u);
    EXPECT_EQ(cachalot_max_memory_allocated(0), 3 * kMiB);
    EXPECT_EQ(cachalot_max_memory_reserved(0), 20 * kMiB);

    EXPECT_EQ(stat("num_device_alloc"), 1);
    EXPECT_EQ(cachalot_reset_peak_memory_stats(0), CACHALOT_OK);
    EXPECT_EQ(cachalot_reset_accumulated_memory_stats(0), CACHALOT_OK);
    EXPECT_EQ(cachalot_max_memory_allocated(0), 0u);
    EXPECT_EQ(cachalot_max_memory_reserved(0), 0u);
    EXPECT_EQ(stat("num_device_alloc"), 0);
  });
}

// The child has an allocator of its own, or is told why it has none.
TEST(CApi, AForkDuringTheFirstCallLeavesAChildThatDoesNotHang) {
  // It takes what the child finds half made, and leaves alone, for races.
  if (kThreadSanitizer) GTEST_SKIP() << "ThreadSanitizer does not follow forks of threads";
  constexpr int kServed = 20;
  constexpr int kRefused = 21;
  constexpr int kForks = 300;
  constexpr int kTurnsLater = 50;  // each fork comes this much later in the first call
  const auto fork_during_the_first_call = [](int turns) {
    std::thread first([] { cachalot_free(cachalot_malloc(1 << 20, 0, nullptr), 1 << 20, 0, nullptr); });
    for (std::atomic<int> turn = 0; turn < turns; ++turn) {
    }
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(cachalot_malloc(100, 0, nullptr) != nullptr ? kServed : kRefused);
    }
    int status = -1;
    waitpid(child, &status, 0);
    first.join();
    EXPECT_TRUE(WIFEXITED(status)) << "after " << turns << " turns";
    EXPECT_TRUE(WEXITSTATUS(status) == kServed || WEXITSTATUS(status) == kRefused);
  };
  for (int i = 0; i < kForks; ++i) in_fresh_process([&] { fork_during_the_first_call(i * kTurnsLater); });
}

TEST(CApi, WorksFromC) {
  in_fresh_process([] { EXPECT_EQ(cachalot_c_program(), 0) << last_error(); });
}

TEST(CApi, ZeroBytesAreNullWithoutAnError) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_malloc(0, 0, nullptr), nullptr);
    EXPECT_EQ(last_error(), "");
    EXPECT_EQ(stat("allocation.all.allocated"), 0);
  });
}

TEST(CApi, FreeOfNullDoesNothing) {
  in_fresh_process([] {
    cachalot_free(nullptr, 0, 0, nullptr);
    cachalot_free(nullptr, 17, 99, nullptr);
    EXPECT_EQ(last_error(), "");
    EXPECT_EQ(cachalot_record_stream(nullptr, nullptr), CACHALOT_OK);
    cachalot_string_free(nullptr);
  });
}

TEST(CApi, AFreedBlockIsReusedOnItsStreamOnly) {
  in_fresh_process([] {
    void* const p = cachalot_malloc(3 * kMiB, 0, stream_of(16));
    cachalot_free(p, 3 * kMiB, 0, stream_of(16));
    void* const other = cachalot_malloc(3 * kMiB, 0, stream_of(32));
    EXPECT_NE(other, p);
    EXPECT_EQ(cachalot_malloc(3 * kMiB, 0, stream_of(16)), p);
  });
}

TEST(CApi, AStreamThatEndsLeavesItsMemoryToOthers) {
  in_fresh_process([] {
    void* const p = cachalot_malloc(32 * kMiB, 0, stream_of(16));
    cachalot_free(p, 32 * kMiB, 0, stream_of(16));
    EXPECT_NE(cachalot_malloc(32 * kMiB, 0, stream_of(32)), p);
    EXPECT_EQ(cachalot_stream_ends(stream_of(16)), CACHALOT_OK);
    EXPECT_EQ(cachalot_stream_ends(nullptr), CACHALOT_OK);
    EXPECT_EQ(cachalot_malloc(32 * kMiB, 0, stream_of(48)), p);
  });
}

TEST(CApi, AUseOnAnotherStreamDefersTheFree) {
  in_fresh_process([] {
    void* const p = cachalot_malloc(3 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_record_stream(p, stream_of(16)), CACHALOT_OK);
    cachalot_free(p, 3 * kMiB, 0, nullptr);
    EXPECT_EQ(stat("allocation.all.current"), 0);
    EXPECT_EQ(stat("active.all.current"), 1);
    EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);
    EXPECT_EQ(stat("active.all.current"), 0);
  });
}

TEST(CApi, AFreeOnAnotherStreamIsAUseThere) {
  in_fresh_processes({}, [] {
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB}) {
      void* const p = cachalot_malloc(bytes, 0, nullptr);
      cachalot_free(p, bytes, 0, stream_of(16));
      EXPECT_EQ(last_error(), "");
      EXPECT_EQ(stat("active.all.current"), 1);
      EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);
      EXPECT_EQ(stat("active.all.current"), 0);
    }
  });
}

TEST(CApi, DevicesHaveCachesOfTheirOwn) {
  in_fresh_process({{"CACHALOT_CONF", "thread_cache:True"}, {"CACHALOT_SIM", "devices:2"}}, [] {
    const auto pair_on = [](int device) {
      cachalot_free(cachalot_malloc(1000, device, nullptr), 1000, device, nullptr);
    };
    for (int i = 0; i < 3; ++i) pair_on(0);
    void* const p = cachalot_malloc(1000, 0, nullptr);
    for (int i = 0; i < 3; ++i) pair_on(1);
    cachalot_free(p, 1000, 1, nullptr);
    EXPECT_TRUE(error_names({"is an allocation of device 0, not of device 1"}));
    EXPECT_EQ(cachalot_memory_allocated(0), 1024u);
    cachalot_free(p, 1000, 0, nullptr);
    EXPECT_EQ(last_error(), "");
    EXPECT_EQ(cachalot_memory_allocated(0), 0u);
  });
}

TEST(CApi, SmallBlocksAreFreedWhateverBecameOfTheirCache) {
  in_fresh_process({{"CACHALOT_CONF", "thread_cache:True"}}, [] {
    const cudaStream_t stream = stream_of(16);
    const auto pair = [&] { cachalot_free(cachalot_malloc(1000, 0, stream), 1000, 0, stream); };
    const auto free_after = [&](const auto& change) {
      for (int i = 0; i < 3; ++i) pair();
      void* const p = cachalot_malloc(1000, 0, stream);
      change();
      cachalot_free(p, 1000, 0, stream);
      EXPECT_EQ(last_error(), "");
      EXPECT_EQ(cachalot_memory_allocated(0), 0u);
      pair();
      EXPECT_EQ(stat("allocation.all.current"), 0);
    };
    free_after([] {});
    free_after([] { EXPECT_EQ(cachalot_drain_thread_caches(0), CACHALOT_OK); });
    free_after([&] { EXPECT_EQ(cachalot_stream_ends(stream), CACHALOT_OK); });
    free_after([] { EXPECT_EQ(cachalot_configure("thread_cache:False"), CACHALOT_OK); });
    free_after([] { EXPECT_EQ(cachalot_configure("thread_cache:True"), CACHALOT_OK); });
    free_after([] { EXPECT_EQ(cachalot_configure("roundup_power2_divisions:2"), CACHALOT_OK); });
  });
}

// ---- The answers to bad arguments -----------------------------------------------------------------------------------

TEST(CApi, SizesFrom1EiBOnFailAndNameTheValue) {
  in_fresh_process([] {
    ASSERT_EQ(cachalot_malloc(0, 0, nullptr), nullptr);
    const json before = state_of(0);
    struct Row {
      std::size_t size;
      const char* text;
    };
    for (const Row& row : {Row{kExbibyte, "1152921504606846976"}, Row{kExbibyte + 1, "1152921504606846977"},
                           Row{static_cast<std::size_t>(-1), "18446744073709551615"},
                           Row{static_cast<std::size_t>(-4096), "18446744073709547520"}}) {
      EXPECT_EQ(cachalot_malloc(row.size, 0, nullptr), nullptr);
      EXPECT_TRUE(error_names({row.text, "1 EiB"}));
      EXPECT_EQ(state_of(0), before);
      forget_last_error();
    }
  });
}

TEST(CApi, UnknownDevicesAreRefusedByNameEverywhere) {
  in_fresh_process({{"CACHALOT_SIM", "devices:2"}}, [] {
    for (const auto& [device, text] :
         {std::pair{2, "2"}, {99, "99"}, {-2, "-2"}, {std::numeric_limits<int>::min(), "-2147483648"}}) {
      for (const DeviceFunction& function : kAllDevicesFunctions) {
        SCOPED_TRACE(function.name);
        EXPECT_TRUE(function.fails(device, CACHALOT_E_INVALID_ARGUMENT));
        EXPECT_TRUE(error_names({"device", text, "0 to 1"}));
        forget_last_error();
      }
      for (const DeviceFunction& function : kOneDeviceFunctions) {
        SCOPED_TRACE(function.name);
        EXPECT_TRUE(function.fails(device, CACHALOT_E_INVALID_ARGUMENT));
        EXPECT_TRUE(error_names({"device", text, "0 to 1"}));
        forget_last_error();
      }
    }
    for (const DeviceFunction& function : kOneDeviceFunctions) {  // -1, all devices, makes no sense here
      SCOPED_TRACE(function.name);
      EXPECT_TRUE(function.fails(-1, CACHALOT_E_INVALID_ARGUMENT));
      EXPECT_TRUE(error_names({"device", "-1", "0 to 1"}));
      forget_last_error();
    }
  });
}

TEST(CApi, CachalotDebugThatIsNeitherOneNorZeroIsRefused) {
  in_fresh_process({{"CACHALOT_DEBUG", "yes"}}, [] {
    EXPECT_EQ(cachalot_malloc(512, 0, nullptr), nullptr);
    EXPECT_TRUE(error_names({"environment variable CACHALOT_DEBUG: 'yes' is not 1"}));
    int on_the_host = 0;
    EXPECT_EQ(cachalot_record_stream(&on_the_host, nullptr), CACHALOT_E_ENVIRONMENT);
  });
}

TEST(CApi, AFreeThatDoesNotMatchChangesNothingAndSaysWhy) {
  in_fresh_processes({{"CACHALOT_SIM", "devices:2"}}, [] {
    char* const p = static_cast<char*>(cachalot_malloc(1000, 0, nullptr));
    ASSERT_NE(p, nullptr);
    const json before = state_of(0);
    int on_the_host = 0;
    struct Row {
      const char* what;
      void* ptr;
      std::size_t size;
      int device;
      std::vector<const char*> parts;
    };
    const Row rows[] = {
        {"another size", p, 1001, 0, {"1001", "1000"}},
        {"the block's size", p, 1024, 0, {"1024", "1000"}},
        {"no size", p, 0, 0, {"0", "1000"}},
        {"another device", p, 1000, 1, {"device 0", "device 1"}},
        {"no such device", p, 1000, 2, {"device 2", "0 to 1"}},
        {"inside the block", p + 512, 1000, 0, {"invalid device pointer"}},
        {"one byte in", p + 1, 1000, 0, {"invalid device pointer"}},
        {"in the rest of the segment", p + 4096, 1000, 0, {"invalid device pointer"}},
        {"before everything", p - 512, 1000, 0, {"invalid device pointer"}},
        {"host memory", &on_the_host, 4, 0, {"invalid device pointer"}},
        {"the last address", reinterpret_cast<void*>(~std::uintptr_t{0}), 4, 0, {"invalid device pointer"}},
    };
    for (const Row& row : rows) {
      SCOPED_TRACE(row.what);
      forget_last_error();
      cachalot_free(row.ptr, row.size, row.device, nullptr);
      EXPECT_NE(last_error(), "");
      for (const char* part : row.parts) EXPECT_TRUE(error_names({part}));
      EXPECT_EQ(state_of(0), before);
    }
    cachalot_free(p, 1000, 0, nullptr);
    EXPECT_EQ(last_error(), "");
    const json after = state_of(0);
    cachalot_free(p, 1000, 0, nullptr);  // a second time
    EXPECT_TRUE(error_names({"invalid device pointer"}));
    EXPECT_EQ(state_of(0), after);
  });
}

TEST(CApi, RecordStreamWantsALiveAllocation) {
  in_fresh_process([] {
    char* const p = static_cast<char*>(cachalot_malloc(1000, 0, nullptr));
    EXPECT_EQ(cachalot_record_stream(p, stream_of(16)), CACHALOT_OK);
    EXPECT_EQ(cachalot_record_stream(p + 512, stream_of(16)), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"invalid device pointer"}));
  });
}

TEST(CApi, FractionsOutsideZeroToOneAreRefused) {
  in_fresh_process([] {
    for (const double fraction : {-0.1, 1.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
      EXPECT_EQ(cachalot_set_memory_fraction(fraction, 0), CACHALOT_E_INVALID_ARGUMENT) << fraction;
      EXPECT_TRUE(error_names({"fraction", "1"}));
      forget_last_error();
    }
  });
}

TEST(CApi, NullWhereAPointerIsNeededIsRefused) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_fragmentation(0, nullptr), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"out is NULL"}));
    EXPECT_EQ(cachalot_configure(nullptr), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"options is NULL"}));
    EXPECT_EQ(cachalot_begin_tagged(nullptr, -1), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_begin_tagged", "tag is NULL"}));
    EXPECT_EQ(cachalot_end_tagged(nullptr, -1), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_release_physical(nullptr, 0, nullptr, -1), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_restore_physical(nullptr, -1), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_restore_physical", "tag is NULL"}));
  });
}

// ---- Sleep ----------------------------------------------------------------------------------------------------------

TEST(CApi, ATagSleepsAndWakesWithItsAllocations) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}, {"CACHALOT_SIM", "memory:64MiB"}}, [] {
    ASSERT_EQ(cachalot_begin_tagged("weights", -1), CACHALOT_OK) << last_error();
    void* const weights = cachalot_malloc(40 * kMiB, 0, nullptr);
    ASSERT_EQ(cachalot_end_tagged("weights", -1), CACHALOT_OK) << last_error();
    for (const int save : {0, 1}) {
      ASSERT_EQ(cachalot_release_physical("weights", save, nullptr, -1), CACHALOT_OK) << last_error();
      EXPECT_EQ(cachalot_memory_reserved(0), 0u);
      EXPECT_EQ(cachalot_memory_allocated(0), 40 * kMiB);
      void* const other = cachalot_malloc(60 * kMiB, 0, nullptr);
      ASSERT_NE(other, nullptr) << last_error();
      EXPECT_EQ(cachalot_restore_physical("weights", 0), CACHALOT_E_OUT_OF_MEMORY);
      EXPECT_TRUE(error_names({"Tried to allocate 40.00 MiB"}));
      cachalot_free(other, 60 * kMiB, 0, nullptr);
      ASSERT_EQ(cachalot_restore_physical("weights", 0), CACHALOT_OK) << last_error();
      EXPECT_EQ(cachalot_memory_reserved(0), 40 * kMiB);
    }
    cachalot_free(weights, 40 * kMiB, 0, nullptr);
    EXPECT_EQ(last_error(), "");
  });
}

TEST(CApi, SeveralTagsSleepAndWakeAndAreListed) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}}, [] {
    const char* const tags[] = {"weights", "cache"};
    void* memory[2] = {};
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cachalot_begin_tagged(tags[i], 0), CACHALOT_OK);
      memory[i] = cachalot_malloc(4 * kMiB, 0, nullptr);
      ASSERT_EQ(cachalot_end_tagged(tags[i], 0), CACHALOT_OK);
    }
    ASSERT_EQ(cachalot_release_tags(tags, 2, 0, nullptr, 0), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_memory_reserved(0), 0u);
    char* const text = cachalot_tags_json();
    ASSERT_NE(text, nullptr);
    EXPECT_NE(std::string(text).find(R"("tag":"cache","device":0,"is_asleep":true)"), std::string::npos) << text;
    EXPECT_NE(std::string(text).find(R"("tag":"weights","device":0,"is_asleep":true)"), std::string::npos) << text;
    cachalot_string_free(text);
    ASSERT_EQ(cachalot_restore_tags(tags, 2, 0), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_memory_reserved(0), 8 * kMiB);
    EXPECT_EQ(cachalot_release_tags(nullptr, 0, 0, nullptr, 0), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_release_tags(nullptr, 2, 0, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_release_tags: tags is NULL", "2 names"}));
    const char* const wrong[] = {"weights", nullptr};
    EXPECT_EQ(cachalot_release_tags(wrong, 2, 0, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_release_tags: tag is NULL"}));
    EXPECT_EQ(cachalot_memory_reserved(0), 8 * kMiB);
    for (void* each : memory) cachalot_free(each, 4 * kMiB, 0, nullptr);
  });
}

TEST(CApi, WhatCannotSleepIsRefusedByName) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}}, [] {
    EXPECT_EQ(cachalot_begin_tagged("", -1), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_release_physical("weights", 0, nullptr, -1), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"no memory was ever tagged 'weights'"}));
    ASSERT_EQ(cachalot_begin_tagged("weights", 0), CACHALOT_OK);
    ASSERT_EQ(cachalot_release_physical("weights", 0, nullptr, 0), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_malloc(kMiB, 0, nullptr), nullptr);
    EXPECT_TRUE(error_names({"tag 'weights' is asleep on device 0"}));
    EXPECT_EQ(cachalot_end_tagged("weights", 0), CACHALOT_OK);
    EXPECT_EQ(cachalot_end_tagged("weights", 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"this thread is in no region of tag 'weights'"}));
  });
  in_fresh_process([] {
    ASSERT_EQ(cachalot_begin_tagged("weights", 0), CACHALOT_OK);
    EXPECT_EQ(cachalot_release_physical("weights", 0, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"needs heap:pages", "'segments'"}));
  });
}

TEST(CApi, ASleepingTagKeepsItsContentInAFile) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}}, [] {
    ASSERT_EQ(cachalot_begin_tagged("weights", 0), CACHALOT_OK);
    void* const weights = cachalot_malloc(4 * kMiB, 0, nullptr);
    ASSERT_EQ(cachalot_end_tagged("weights", 0), CACHALOT_OK);
    EXPECT_EQ(cachalot_release_physical("weights", 3, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_release_physical: keep is 3", "CACHALOT_KEEP_FILE"}));
    EXPECT_EQ(cachalot_release_physical("weights", CACHALOT_KEEP_FILE, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    char bytes[16];
    int is_kept = 1;
    for (const int keep : {CACHALOT_KEEP_NOTHING, CACHALOT_KEEP_FILE}) {
      const char* const folder = keep == CACHALOT_KEEP_FILE ? "/tmp" : nullptr;
      ASSERT_EQ(cachalot_release_physical("weights", keep, folder, 0), CACHALOT_OK) << last_error();
      ASSERT_EQ(cachalot_read_saved(weights, bytes, sizeof bytes, &is_kept), CACHALOT_OK) << last_error();
      EXPECT_EQ(is_kept, keep == CACHALOT_KEEP_FILE ? 1 : 0);
      ASSERT_EQ(cachalot_restore_physical("weights", 0), CACHALOT_OK) << last_error();
    }
    EXPECT_EQ(cachalot_read_saved(weights, nullptr, 1, &is_kept), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_read_saved(weights, bytes, 1, nullptr), CACHALOT_E_INVALID_ARGUMENT);
  });
}

TEST(CApi, AnEvictableTagGivesWayAndIsEnsured) {
  in_fresh_process({{"CACHALOT_CONF", "heap:pages"}, {"CACHALOT_SIM", "memory:64MiB"}}, [] {
    ASSERT_EQ(cachalot_begin_tagged("cache", 0), CACHALOT_OK);
    ASSERT_NE(cachalot_malloc(40 * kMiB, 0, nullptr), nullptr);
    ASSERT_EQ(cachalot_end_tagged("cache", 0), CACHALOT_OK);
    ASSERT_EQ(cachalot_make_evictable("cache", 0, CACHALOT_KEEP_NOTHING, nullptr, 0), CACHALOT_OK) << last_error();
    void* const other = cachalot_malloc(60 * kMiB, 0, nullptr);
    ASSERT_NE(other, nullptr) << last_error();
    int is_lost = -1;
    EXPECT_EQ(cachalot_ensure("cache", 0, &is_lost), CACHALOT_E_OUT_OF_MEMORY);
    cachalot_free(other, 60 * kMiB, 0, nullptr);
    for (const int lost : {1, 0}) {
      ASSERT_EQ(cachalot_ensure("cache", 0, &is_lost), CACHALOT_OK) << last_error();
      EXPECT_EQ(is_lost, lost);
    }
    EXPECT_EQ(cachalot_malloc(60 * kMiB, 0, nullptr), nullptr);
    EXPECT_EQ(cachalot_give_way(64 * kMiB, 0), 0u);
    EXPECT_EQ(last_error(), "");
    for (int i = 0; i < 2; ++i) ASSERT_EQ(cachalot_let_go("cache", 0), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_let_go("cache", 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_give_way(64 * kMiB, 0), 40 * kMiB);
    ASSERT_EQ(cachalot_make_resident("cache", 0), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_make_evictable("cache", 0, 7, nullptr, 0), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_ensure("cache", 0, nullptr), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"cachalot_ensure: is_lost is NULL"}));
  });
}

// ---- Running out ----------------------------------------------------------------------------------------------------

TEST(CApi, OutOfMemoryIsNullWithAMessageAndNothingIsLost) {
  in_fresh_process({{"CACHALOT_SIM", "memory:64MiB"}}, [] {
    void* const p = cachalot_malloc(40 * kMiB, 0, nullptr);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(cachalot_malloc(30 * kMiB, 0, nullptr), nullptr);
    EXPECT_TRUE(error_names({"30.00 MiB", "64.00 MiB"}));
    EXPECT_EQ(stat("num_ooms"), 1);
    EXPECT_EQ(cachalot_memory_allocated(0), 40 * kMiB);
    cachalot_free(p, 40 * kMiB, 0, nullptr);
    EXPECT_NE(cachalot_malloc(60 * kMiB, 0, nullptr), nullptr) << "the cache was not given back: " << last_error();
  });
}

TEST(CApi, AFractionLimitsWhatIsHeld) {
  in_fresh_process({{"CACHALOT_SIM", "memory:100MiB"}}, [] {
    EXPECT_EQ(cachalot_set_memory_fraction(0.5, 0), CACHALOT_OK);
    EXPECT_EQ(cachalot_malloc(52 * kMiB, 0, nullptr), nullptr);
    EXPECT_NE(cachalot_malloc(50 * kMiB, 0, nullptr), nullptr);
    EXPECT_EQ(cachalot_set_memory_fraction(1.0, 0), CACHALOT_OK);
    EXPECT_NE(cachalot_malloc(50 * kMiB, 0, nullptr), nullptr);
  });
}

// ---- last_error -----------------------------------------------------------------------------------------------------

TEST(CApi, LastErrorIsEmptyUntilACallFails) {
  in_fresh_process([] {
    EXPECT_EQ(last_error(), "");
    EXPECT_EQ(cachalot_memory_allocated(0), 0u);
    EXPECT_EQ(last_error(), "");
  });
}

TEST(CApi, LastErrorStaysThroughCallsWhoseResultTells) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_empty_cache(5), CACHALOT_E_INVALID_ARGUMENT);
    const std::string message = last_error();
    EXPECT_NE(message, "");
    EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);
    cachalot_memory_allocated(0);
    take_json(cachalot_snapshot_json());
    EXPECT_EQ(last_error(), message);
  });
}

TEST(CApi, LastErrorCodeIsThatOfTheCallThatFailed) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_OK);
    EXPECT_EQ(cachalot_malloc(1, 5, nullptr), nullptr);
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_malloc(std::size_t{1} << 59, 0, nullptr), nullptr);
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_OUT_OF_MEMORY);
    EXPECT_EQ(cachalot_trim(0, 5), 0);
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_trim(0, 0), 0) << "nothing is cached, which is no failure";
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_OK);
    EXPECT_EQ(last_error(), "");
  });
  in_fresh_process({{"CACHALOT_CONF", "heap:none"}}, [] {
    EXPECT_EQ(cachalot_malloc(1, 0, nullptr), nullptr);
    EXPECT_EQ(cachalot_last_error_code(), CACHALOT_E_ENVIRONMENT);
  });
}

TEST(CApi, MallocAndFreeThatSucceedEmptyLastError) {
  in_fresh_processes({}, [] {
    cachalot_empty_cache(5);
    EXPECT_EQ(cachalot_malloc(0, 0, nullptr), nullptr);
    EXPECT_EQ(last_error(), "");

    cachalot_empty_cache(5);
    void* const p = cachalot_malloc(512, 0, nullptr);
    EXPECT_EQ(last_error(), "");

    cachalot_empty_cache(5);
    cachalot_free(p, 512, 0, nullptr);
    EXPECT_EQ(last_error(), "");
  });
}

TEST(CApi, LastErrorIsThisThreads) {
  in_fresh_process([] {
    cachalot_empty_cache(5);
    const std::string mine = last_error();
    std::thread([&] {
      EXPECT_EQ(last_error(), "");
      cachalot_empty_cache(6);
      EXPECT_TRUE(error_names({"device 6"}));
    }).join();
    EXPECT_EQ(last_error(), mine);
  });
}

// Its destructor, at the end of its thread, makes a call that fails.
struct FailsLate {
  ~FailsLate() {
    cachalot_empty_cache(5);
    message = cachalot_last_error();
  }
  static std::string message;
};
std::string FailsLate::message;

TEST(CApi, CallsMayFailWhileTheThreadEnds) {
  in_fresh_process([] {
    std::thread([] {
      static thread_local FailsLate fails_late;
      static_cast<void>(fails_late);
      cachalot_empty_cache(6);  // the message's own storage is made after fails_late, so it is gone before it
    }).join();
    EXPECT_NE(FailsLate::message, "");
  });
}

void* freed_at_exit = nullptr;

TEST(CApi, MemoryMayBeFreedWhileTheProcessEnds) {
  in_fresh_process([] {
    std::atexit([] {
      cachalot_free(freed_at_exit, 512, 0, nullptr);
      _exit(last_error().empty() && cachalot_memory_allocated(0) == 0 ? 0 : 1);
    });
    freed_at_exit = cachalot_malloc(512, 0, nullptr);
    ASSERT_NE(freed_at_exit, nullptr);
    std::exit(1);  // unless the handler says otherwise
  });
}

// ---- Devices --------------------------------------------------------------------------------------------------------

TEST(CApi, AForkedChildIsRefusedByNameAndItsFreesDoNothing) {
  in_fresh_processes({}, [] {
    void* const p = cachalot_malloc(1000, 0, nullptr);
    ASSERT_NE(p, nullptr) << last_error();
    const int status = status_of_fresh_process({}, [&] {
      EXPECT_EQ(cachalot_malloc(1000, 0, nullptr), nullptr);
      EXPECT_TRUE(error_names({"the allocator belongs to process", "CUDA does not work in a forked child"}));
      EXPECT_EQ(cachalot_empty_cache(-1), CACHALOT_E_INVALID_ARGUMENT);
      EXPECT_EQ(cachalot_configure("max_split_size_mb:64"), CACHALOT_E_INVALID_ARGUMENT);
      EXPECT_EQ(cachalot_snapshot_json(), nullptr);
      EXPECT_EQ(cachalot_memory_allocated(0), 0);
      EXPECT_TRUE(error_names({"CUDA does not work in a forked child"}));
      cachalot_free(p, 1000, 0, nullptr);
      EXPECT_EQ(last_error(), "");
    });
    EXPECT_EQ(status, 0);
    EXPECT_EQ(cachalot_memory_allocated(0), 1024);
    cachalot_free(p, 1000, 0, nullptr);
    EXPECT_EQ(last_error(), "");
    EXPECT_EQ(cachalot_memory_allocated(0), 0);
  });
}

TEST(CApi, DevicesHaveMemoryAndFiguresOfTheirOwn) {
  in_fresh_process({{"CACHALOT_SIM", "devices:3,memory:1 GiB"}}, [] {
    for (int device = 0; device < 3; ++device) {
      void* const p = cachalot_malloc(300 * kMiB, device, nullptr);
      cachalot_free(p, 300 * kMiB, device, nullptr);
      EXPECT_EQ(last_error(), "");
      EXPECT_EQ(cachalot_memory_reserved(device), 300 * kMiB);
    }
    EXPECT_EQ(cachalot_malloc(1025 * kMiB, 1, nullptr), nullptr);
    EXPECT_EQ(cachalot_memory_reserved(1), 0u);
    EXPECT_EQ(cachalot_memory_reserved(2), 300 * kMiB);

    EXPECT_EQ(cachalot_empty_cache(-1), CACHALOT_OK);
    EXPECT_EQ(cachalot_reset_peak_memory_stats(-1), CACHALOT_OK);
    EXPECT_EQ(cachalot_reset_accumulated_memory_stats(-1), CACHALOT_OK);
    for (int device = 0; device < 3; ++device) {
      EXPECT_EQ(cachalot_memory_reserved(device), 0u);
      EXPECT_EQ(cachalot_max_memory_reserved(device), 0u);
      EXPECT_EQ(stat("num_device_alloc", device), 0);
    }
  });
}

TEST(CApi, TheSimulatedDeviceHas80GiBUnlessTold) {
  in_fresh_process([] {
    EXPECT_NE(cachalot_malloc(80 * 1024 * kMiB, 0, nullptr), nullptr);
    EXPECT_EQ(cachalot_malloc(512, 0, nullptr), nullptr);
  });
}

// The driver's GPUs, or an error, come first if a driver is there.
TEST(CApi, SimulatedDevicesThatNobodyAskedForAreToldOfOnce) {
  in_fresh_process({{"CACHALOT_SIMULATE", "0"}, {"CUDA_VISIBLE_DEVICES", ""}}, [] {
    ::testing::internal::CaptureStderr();
    void* const first = cachalot_malloc(512, 0, nullptr);
    void* const second = cachalot_malloc(512, 0, nullptr);
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(first == nullptr, second == nullptr);
    if (first == nullptr) {
      EXPECT_TRUE(error_names({"CACHALOT_SIMULATE=1"}));
      EXPECT_EQ(cachalot_empty_cache(-1), CACHALOT_E_CUDA);
      return;
    }
    EXPECT_EQ(told.find("cachalot: "), 0u) << told;
    EXPECT_NE(told.find(": memory is that of 1 simulated GPU, "), std::string::npos) << told;
    EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  });
  in_fresh_process([] {
    ::testing::internal::CaptureStderr();
    EXPECT_NE(cachalot_malloc(512, 0, nullptr), nullptr);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  });
}

TEST(CApi, AnOptionWithoutEffectIsToldOnce) {
  in_fresh_process([] {
    ::testing::internal::CaptureStderr();
    setenv("CACHALOT_CONF", "pinned_num_register_threads:2", 1);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(cachalot_configure("pinned_use_background_threads:True"), CACHALOT_OK) << cachalot_last_error();
      cachalot_free(cachalot_malloc(512, 0, nullptr), 512, 0, nullptr);
    }
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(told.find("cachalot: option pinned_num_register_threads has no effect: "), 0u) << told;
    EXPECT_NE(told.find("\ncachalot: option pinned_use_background_threads has no effect: "), std::string::npos) << told;
    EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 2) << told;
  });
}

TEST(CApi, ABadEnvironmentFailsEveryCallUntilItIsMended) {
  struct Row {
    const char* variable;
    const char* value;
    std::vector<const char*> parts;
  };
  const Row rows[] = {
      {"CACHALOT_CONF", "max_split_size_mb:1", {"max_split_size_mb", "'1'", "must be >= 20"}},
      {"CACHALOT_CONF", "foo:1", {"Unrecognized key 'foo'"}},
      {"CACHALOT_CONF", "heap:segments,", {"heap", "'segments'"}},
      {"CACHALOT_CONF", "page_size_mb:3", {"page_size_mb", "'3'", "multiple of 2"}},
      {"CACHALOT_SIMULATE", "yes", {"'yes'", "is not 1"}},
      {"CACHALOT_SIM", "memory:lots", {"'lots'"}},
      {"CACHALOT_SIM", "memory:-1", {"'-1'"}},
      {"CACHALOT_SIM", "memory:1MiB", {"'1MiB'", "2 MiB"}},
      {"CACHALOT_SIM", "memory:", {"option memory", "found the end where a value is expected"}},
      {"CACHALOT_SIM", "devices:0", {"'0'", "1 to 64"}},
      {"CACHALOT_SIM", "devices:-3", {"'-3'", "1 to 64"}},
      {"CACHALOT_SIM", "devices:65", {"'65'", "1 to 64"}},
      {"CACHALOT_SIM", "devices:2x", {"'2x'"}},
      {"CACHALOT_SIM", "devices:99999999999", {"'99999999999'"}},
      {"CACHALOT_SIM", "devices:nan", {"'nan'"}},
      {"CACHALOT_SIM", "devices:' 1'", {"' 1'"}},
      {"CACHALOT_SIM", "memory:nan", {"'nan'"}},
      {"CACHALOT_SIM", "memory:inf", {"'inf'"}},
      {"CACHALOT_SIM", "memory:1e400", {"'1e400'"}},
      {"CACHALOT_SIM", "memory:18446744073709551615", {"'18446744073709551615'"}},
      {"CACHALOT_SIM", "memory:16777216TiB", {"'16777216TiB'"}},
      {"CACHALOT_SIM", "memory:9223372036854775808", {"'9223372036854775808'"}},
      {"CACHALOT_SIM", "memory:1125899906842625", {"'1125899906842625'", "more than 1 PiB"}},
      {"CACHALOT_SIM",
       "memory:80G\xc3\xad"
       "B",
       {"80G"}},
      {"CACHALOT_CONF", "max_split_size_mb:18446744073709551616", {"max_split_size_mb"}},
      {"CACHALOT_CONF", "garbage_collection_threshold:nan", {"garbage_collection_threshold", "'nan'"}},
      {"CACHALOT_CONF", "\xff\xfe:1", {"Unrecognized key"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::string(row.variable) + "=" + row.value);
    in_fresh_process({{row.variable, row.value}}, [&] {
      std::vector<DeviceFunction> functions(std::begin(kOneDeviceFunctions), std::end(kOneDeviceFunctions));
      functions.insert(functions.end(), std::begin(kAllDevicesFunctions), std::end(kAllDevicesFunctions));
      functions.push_back({"malloc of 0 bytes", [](int, int) { return cachalot_malloc(0, 0, nullptr) == nullptr; }});
      functions.push_back({"free", [](int, int) {
                             int host = 0;
                             cachalot_free(&host, 4, 0, nullptr);
                             return true;
                           }});
      functions.push_back({"record_stream", [](int, int code) {
                             int host = 0;
                             return cachalot_record_stream(&host, nullptr) == code;
                           }});
      functions.push_back({"snapshot_json", [](int, int) { return cachalot_snapshot_json() == nullptr; }});
      for (const DeviceFunction& function : functions) {
        SCOPED_TRACE(function.name);
        forget_last_error();
        EXPECT_TRUE(function.fails(0, CACHALOT_E_ENVIRONMENT));
        EXPECT_TRUE(error_names({row.variable}));
        for (const char* part : row.parts) EXPECT_TRUE(error_names({part}));
      }
      unsetenv(row.variable);
      EXPECT_NE(cachalot_malloc(512, 0, nullptr), nullptr) << last_error();
    });
  }
}

// ---- Options --------------------------------------------------------------------------------------------------------

// Bytes held for one request of 3 MiB: the large segment size.
std::size_t large_segment() {
  void* const p = cachalot_malloc(3 * kMiB, 0, nullptr);
  const std::size_t reserved = cachalot_memory_reserved(0);
  cachalot_free(p, 3 * kMiB, 0, nullptr);
  EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);
  return reserved;
}

json settings() { return take_json(cachalot_snapshot_json())["allocator_settings"]; }

TEST(CApi, OptionsComeFromCachalotConfAlone) {
  in_fresh_process({{"CACHALOT_CONF", "large_segment_size_mb:32"}}, [] { EXPECT_EQ(large_segment(), 32 * kMiB); });
  in_fresh_process({{"PYTORCH_CUDA_ALLOC_CONF", "large_segment_size_mb:32"}, {"PYTORCH_ALLOC_CONF", "foo"}},
                   [] { EXPECT_EQ(large_segment(), 20 * kMiB); });
}

TEST(CApi, ConfigureBeforeFirstUseSetsAnythingOnTopOfTheEnvironment) {
  in_fresh_process(
      {{"CACHALOT_CONF", "large_segment_size_mb:32,max_split_size_mb:64"}, {"CACHALOT_SIM", "memory:100MiB"}}, [] {
        EXPECT_EQ(cachalot_configure("release_lock_on_cudamalloc:True"), CACHALOT_OK);
        EXPECT_EQ(cachalot_configure("heap:segments,backend:native,per_process_memory_fraction:0.5"), CACHALOT_OK)
            << last_error();
        EXPECT_EQ(large_segment(), 32 * kMiB);
        EXPECT_EQ(settings()["release_lock_on_cudamalloc"], true);
        EXPECT_EQ(settings()["max_split_size"], -1);  // reset, as in PyTorch
        EXPECT_EQ(cachalot_malloc(52 * kMiB, 0, nullptr), nullptr);
        EXPECT_NE(cachalot_malloc(50 * kMiB, 0, nullptr), nullptr);
      });
}

TEST(CApi, AMistakeInConfigureBeforeFirstUseAppliesNothing) {
  in_fresh_process([] {
    EXPECT_EQ(cachalot_configure("large_segment_size_mb:32,max_split_size_mb:31"), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_TRUE(error_names({"max_split_size_mb", "'31'", "must be >= 32"}));
    EXPECT_EQ(large_segment(), 20 * kMiB);
  });
}

TEST(CApi, ConfigureDoesNotHideABadEnvironment) {
  in_fresh_process({{"CACHALOT_CONF", "foo:1"}}, [] {
    EXPECT_EQ(cachalot_configure("heap:segments"), CACHALOT_E_ENVIRONMENT);
    EXPECT_TRUE(error_names({"CACHALOT_CONF", "foo"}));
    EXPECT_EQ(cachalot_malloc(512, 0, nullptr), nullptr);
  });
}

TEST(CApi, ConfigureAfterwardsChangesWhatPyTorchCanChange) {
  in_fresh_process({{"CACHALOT_SIM", "memory:100MiB"}}, [] {
    EXPECT_EQ(large_segment(), 20 * kMiB);
    EXPECT_EQ(cachalot_configure("large_segment_size_mb:32,roundup_power2_divisions:2"), CACHALOT_OK) << last_error();
    EXPECT_EQ(large_segment(), 32 * kMiB);
    void* const p = cachalot_malloc(5 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_memory_allocated(0), 6 * kMiB);
    cachalot_free(p, 5 * kMiB, 0, nullptr);
    EXPECT_EQ(cachalot_configure(""), CACHALOT_OK);
    EXPECT_EQ(settings()["roundup_power2_divisions"]["4"], 0);
    EXPECT_EQ(cachalot_empty_cache(0), CACHALOT_OK);

    EXPECT_EQ(cachalot_configure("per_process_memory_fraction:0.5"), CACHALOT_OK) << last_error();
    EXPECT_EQ(cachalot_malloc(52 * kMiB, 0, nullptr), nullptr);
    EXPECT_EQ(cachalot_configure("per_process_memory_fraction:1.0"), CACHALOT_OK);
    EXPECT_NE(cachalot_malloc(52 * kMiB, 0, nullptr), nullptr);
  });
}

TEST(CApi, AMistakeInConfigureAfterwardsAppliesNothing) {
  in_fresh_process([] {
    cachalot_malloc(512, 0, nullptr);
    const json before = settings();
    for (const char* options : {"large_segment_size_mb:32,foo:1", "large_segment_size_mb:32,heap:pages",
                                "large_segment_size_mb:32,backend:cudaMallocAsync", "roundup_power2_divisions:2,"}) {
      EXPECT_EQ(cachalot_configure(options), CACHALOT_E_INVALID_ARGUMENT) << options;
      EXPECT_NE(last_error(), "");
      EXPECT_EQ(settings(), before) << options;
      forget_last_error();
    }
  });
}

// ---- Figures --------------------------------------------------------------------------------------------------------

TEST(CApi, StatisticsAndSnapshotAreJsonWithPyTorchsKeys) {
  in_fresh_process([] {
    void* const p = cachalot_malloc(1000, 0, stream_of(85));
    const json stats = take_json(cachalot_memory_stats_json(0));
    EXPECT_EQ(stats.size(), 122u);
    EXPECT_EQ(stats["allocated_bytes.small_pool.current"], 1024);
    EXPECT_EQ(stats["requested_bytes.all.current"], 1000);

    const json snapshot = take_json(cachalot_snapshot_json());
    ASSERT_EQ(snapshot["segments"].size(), 1u);
    const json& segment = snapshot["segments"][0];
    EXPECT_EQ(segment["stream"], 85);
    EXPECT_EQ(segment["segment_type"], "small");
    EXPECT_EQ(segment["blocks"][0]["address"], reinterpret_cast<std::uintptr_t>(p));
    EXPECT_EQ(segment["blocks"][0]["state"], "active_allocated");
    EXPECT_EQ(segment["blocks"][1]["state"], "inactive");
    EXPECT_TRUE(snapshot.contains("device_traces") && snapshot.contains("allocator_settings"));
  });
}

TEST(CApi, FragmentationHasTheFiguresOfTheDefinition) {
  in_fresh_process([] {
    std::array<void*, 3> p{};
    for (void*& ptr : p) ptr = cachalot_malloc(3 * kMiB - 100, 0, nullptr);
    cachalot_free(p[1], 3 * kMiB - 100, 0, nullptr);  // holes of 3 MiB and, at the end, 11 MiB

    cachalot_fragmentation_t figures;
    ASSERT_EQ(cachalot_fragmentation(0, &figures), CACHALOT_OK);
    EXPECT_EQ(figures.requested_bytes, 2 * (3 * kMiB - 100));
    EXPECT_EQ(figures.allocated_bytes, 6 * kMiB);
    EXPECT_EQ(figures.reserved_bytes, 20 * kMiB);
    EXPECT_EQ(figures.free_bytes, 14 * kMiB);
    EXPECT_EQ(figures.largest_free_bytes, 11 * kMiB);
    EXPECT_EQ(figures.free_blocks, 2u);
    EXPECT_EQ(figures.peak_requested_bytes, 3 * (3 * kMiB - 100));
    EXPECT_EQ(figures.peak_reserved_bytes, 20 * kMiB);
    const double requested = static_cast<double>(3 * kMiB - 100);
    EXPECT_DOUBLE_EQ(figures.internal, 1 - 2 * requested / static_cast<double>(6 * kMiB));
    EXPECT_DOUBLE_EQ(figures.external, 1 - 11.0 / 14);
    EXPECT_DOUBLE_EQ(figures.reserved_ratio, 20.0 / 6);
    EXPECT_DOUBLE_EQ(figures.peak_ratio, static_cast<double>(20 * kMiB) / (3 * requested));
    for (std::size_t i = 0; i < CACHALOT_HISTOGRAM_ENTRIES; ++i) {
      EXPECT_EQ(figures.free_block_histogram[i], i == 12 || i == 14 ? 1u : 0u) << i;  // [2, 4) and [8, 16) MiB
    }
  });
}

TEST(CApi, FragmentationThatFailsLeavesOutAlone) {
  in_fresh_process([] {
    cachalot_fragmentation_t figures;
    std::memset(&figures, 0x5a, sizeof figures);
    const cachalot_fragmentation_t before = figures;
    EXPECT_EQ(cachalot_fragmentation(1, &figures), CACHALOT_E_INVALID_ARGUMENT);
    EXPECT_EQ(std::memcmp(&figures, &before, sizeof figures), 0);
  });
}

// ---- Threads --------------------------------------------------------------------------------------------------------

TEST(CApi, ThreadsMayStartItTogetherAndShareIt) {
  in_fresh_process([] {
    std::atomic<bool> start{false};
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (std::uintptr_t i = 1; i <= 4; ++i) {
      threads.emplace_back([&, stream = stream_of(i * 16)] {
        while (!start.load()) std::this_thread::yield();
        for (std::size_t round = 0; round < 1000; ++round) {
          const std::size_t size = 512 + (round % 97) * 7919;
          void* const p = cachalot_malloc(size, 0, stream);
          cachalot_free(p, size, 0, stream);
          if (p == nullptr || !last_error().empty()) ++failures;
        }
      });
    }
    start = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(cachalot_memory_allocated(0), 0u);
    EXPECT_EQ(stat("allocation.all.allocated"), 4000);
    EXPECT_EQ(stat("allocation.all.freed"), 4000);
  });
}

}  // namespace
}  // namespace cachalot::testing
