// The adaptors over a MemoryResource: what each does, alone and over others, and what it refuses.
#include <gmock/gmock.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "cachalot/adaptors/alignment.h"
#include "cachalot/adaptors/failure_callback.h"
#include "cachalot/adaptors/limit.h"
#include "cachalot/adaptors/logging.h"
#include "cachalot/adaptors/statistics.h"
#include "tests/mr/testing.h"

namespace cachalot {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Adaptors : public ResourceTest {};

// An upstream that keeps cudaMalloc's alignment alone: each address is 256 bytes behind one of 2 MiB.
class Coarse : public ResourceCalls<Coarse> {
 public:
  explicit Coarse(MemoryResource resource) : resource_(std::move(resource)) {}
  friend bool operator==(const Coarse& a, const Coarse& b) noexcept { return a.resource_ == b.resource_; }
  friend bool operator!=(const Coarse& a, const Coarse& b) noexcept { return !(a == b); }
  friend constexpr void get_property(const Coarse&, ::cuda::mr::device_accessible) noexcept {}

 private:
  friend class ResourceCalls<Coarse>;
  void* allocate_as(ResourceRequest request) const {
    EXPECT_LE(request.alignment, 256U);
    if (request.bytes > kGiB) throw std::bad_alloc();
    request.bytes += 256;
    request.alignment = 2 * kMiB;
    return static_cast<char*>(allocate_from(resource_, request)) + 256;
  }
  void deallocate_as(void* ptr, ResourceRequest request) const noexcept {
    request.bytes += 256;
    deallocate_to(resource_, static_cast<char*>(ptr) - 256, request);
  }
  MemoryResource resource_;
};

// ---- limit -----------------------------------------------------------------------------------------------------------

TEST_F(Adaptors, ALimitCountsLiveBytesAndRefusesMore) {
  const LimitAdaptor limited(resource, 10 * kKiB);
  void* const first = allocate(limited, 6 * kKiB, stream);
  EXPECT_THAT(message_of<OutOfMemory>([&] { allocate(limited, 5 * kKiB, stream); }),
              HasSubstr("5120 bytes were requested, and 6144 of the 10240 bytes that a LimitAdaptor allows"));
  void* const second = allocate_sync(limited, 4 * kKiB - 255);
  EXPECT_EQ(limited.allocated_bytes(), 10 * kKiB) << "each request is rounded up to 256 bytes";
  EXPECT_THROW(allocate(limited, 1, stream), std::bad_alloc);
  EXPECT_EQ(allocate(limited, 0, stream), nullptr);
  deallocate(limited, first, 6 * kKiB, stream);
  deallocate_sync(limited, second, 4 * kKiB - 255);
  EXPECT_EQ(limited.allocated_bytes(), 0U);
  EXPECT_EQ(limited.limit_bytes(), 10 * kKiB);
}

TEST_F(Adaptors, ALimitDoesNotCountWhatTheUpstreamRefuses) {
  const LimitAdaptor limited(resource, SIZE_MAX);
  EXPECT_THROW(allocate(limited, std::size_t{1} << 50, stream), OutOfMemory);
  EXPECT_THROW(allocate(limited, SIZE_MAX, stream), OutOfMemory);
  EXPECT_THROW(allocate(limited, 512, stream, 3), InvalidArgument);
  EXPECT_EQ(limited.allocated_bytes(), 0U);
}

TEST_F(Adaptors, ALimitHoldsForAllThreadsTogether) {
  const LimitAdaptor limited(resource, 8 * kMiB);
  std::atomic<std::size_t> live{0};
  std::atomic<int> refused{0};
  const auto work = [&] {
    for (int i = 0; i < 300; ++i) {
      try {
        void* const ptr = allocate(limited, 3 * kMiB, nullptr);
        EXPECT_LE(live += 3 * kMiB, 8 * kMiB);
        live -= 3 * kMiB;
        deallocate(limited, ptr, 3 * kMiB, nullptr);
      } catch (const OutOfMemory&) {
        ++refused;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(limited.allocated_bytes(), 0U);
}

// ---- statistics ------------------------------------------------------------------------------------------------------

TEST_F(Adaptors, StatisticsHaveValuePeakAndTotal) {
  const StatisticsAdaptor counted(resource);
  void* const first = allocate(counted, 1000, stream);
  void* const second = allocate_sync(counted, 500);
  deallocate(counted, first, 1000, stream);
  EXPECT_EQ(counted.bytes_counter().value, 500);
  EXPECT_EQ(counted.bytes_counter().peak, 1500);
  EXPECT_EQ(counted.bytes_counter().total, 1500);
  EXPECT_EQ(counted.allocations_counter().value, 1);
  EXPECT_EQ(counted.allocations_counter().peak, 2);
  EXPECT_EQ(counted.allocations_counter().total, 2);
  EXPECT_THROW(allocate(counted, std::size_t{1} << 50, stream), OutOfMemory);
  EXPECT_EQ(counted.allocations_counter().total, 2);
  deallocate_sync(counted, second, 500);
}

TEST_F(Adaptors, AScopeOfStatisticsCountsByItselfAndIsAddedAtItsEnd) {
  const StatisticsAdaptor counted(resource);
  void* const before = allocate(counted, 1000, stream);
  EXPECT_EQ(counted.push_counters().bytes.value, 1000);
  EXPECT_EQ(counted.bytes_counter().value, 0);
  void* const inside = allocate(counted, 300, stream);
  counted.push_counters();
  deallocate(counted, before, 1000, stream);
  const ResourceCounters inner = counted.pop_counters();
  EXPECT_EQ(inner.bytes.value, -1000);
  EXPECT_EQ(inner.bytes.peak, 0);
  EXPECT_EQ(inner.bytes.total, 0);
  EXPECT_EQ(counted.bytes_counter().value, -700);
  EXPECT_EQ(counted.bytes_counter().peak, 300);
  const ResourceCounters outer = counted.pop_counters();
  EXPECT_EQ(outer.allocations.total, 1);
  EXPECT_EQ(counted.bytes_counter().value, 300);
  EXPECT_EQ(counted.bytes_counter().peak, 1300) << "at the peak of the scope, what was allocated before lived";
  EXPECT_EQ(counted.bytes_counter().total, 1300);
  deallocate(counted, inside, 300, stream);
  EXPECT_THAT(message_of<InvalidArgument>([&] { counted.pop_counters(); }),
              HasSubstr("pop_counters without push_counters"));
  EXPECT_EQ(counted.bytes_counter().total, 1300);
}

// ---- logging ---------------------------------------------------------------------------------------------------------

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// A line without its thread and time, whose form it checks.
std::string call_of(const std::string& line) {
  static const std::regex form(R"((\d+),(\d\d:\d\d:\d\d\.\d{6}),(.*))");
  std::smatch parts;
  return std::regex_match(line, parts, form) ? parts[3].str() : "not of the form: " + line;
}

std::string text_of(const void* ptr) {
  std::ostringstream text;
  text << ptr;
  return text.str();
}

TEST_F(Adaptors, ALogHasALineForEachCall) {
  std::ostringstream out;
  const LoggingAdaptor logged(resource, out);
  void* const ptr = allocate(logged, 1000, stream);
  deallocate(logged, ptr, 1000, stream);
  EXPECT_THROW(allocate(logged, std::size_t{1} << 50, nullptr), OutOfMemory);
  EXPECT_TRUE(logged.flush());
  const std::vector<std::string> lines = lines_of(out.str());
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "Thread,Time,Action,Pointer,Size,Stream");
  EXPECT_EQ(call_of(lines[1]), "allocate," + text_of(ptr) + ",1000," + text_of(stream));
  EXPECT_EQ(call_of(lines[2]), "free," + text_of(ptr) + ",1000," + text_of(stream));
  EXPECT_EQ(call_of(lines[3]), "allocate failure,(nil),1125899906842624,0");
}

TEST_F(Adaptors, ALogIsWrittenToAFile) {
  const std::string file = ::testing::TempDir() + "cachalot_resource_log.csv";
  {
    const LoggingAdaptor logged(resource, file);
    deallocate_sync(logged, allocate_sync(logged, 10), 10);
  }
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(lines_of(text.str()).size(), 3U);
  std::remove(file.c_str());
  EXPECT_THAT(message_of<InvalidArgument>([&] { LoggingAdaptor(resource, std::string("/no/such/folder/log.csv")); }),
              HasSubstr("'/no/such/folder/log.csv' cannot be opened"));
}

TEST_F(Adaptors, ALogThatLostALineSaysSo) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);
  const LoggingAdaptor logged(resource, out);
  EXPECT_TRUE(logged.is_good());
  out.exceptions(std::ios::goodbit);
  out.setstate(std::ios::badbit);
  deallocate(logged, allocate(logged, 10, stream), 10, stream);
  EXPECT_FALSE(logged.is_good());
}

TEST_F(Adaptors, LinesOfSeveralThreadsStayWhole) {
  std::ostringstream out;
  const LoggingAdaptor logged(resource, out);
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) deallocate(logged, allocate(logged, 1000, nullptr), 1000, nullptr);
  };
  std::thread beside(work);
  work();
  beside.join();
  const std::vector<std::string> lines = lines_of(out.str());
  ASSERT_EQ(lines.size(), 801U);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(call_of(lines[i]), testing::MatchesRegex("(allocate|free),0x[0-9a-f]+,1000,0"));
  }
}

// ---- failure callback ------------------------------------------------------------------------------------------------

TEST_F(Adaptors, AFailureCallbackIsCalledUntilTheRequestSucceeds) {
  const LimitAdaptor limited(resource, kMiB);
  std::vector<void*> cached = {allocate(limited, 400 * kKiB, stream), allocate(limited, 400 * kKiB, stream)};
  std::vector<std::size_t> asked;
  const FailureCallbackAdaptor retrying(limited, [&](std::size_t bytes) {
    asked.push_back(bytes);
    deallocate(limited, cached.back(), 400 * kKiB, stream);
    cached.pop_back();
    return true;
  });
  void* const ptr = allocate(retrying, 700 * kKiB, stream);
  EXPECT_NE(ptr, nullptr);
  EXPECT_THAT(asked, ElementsAre(700 * kKiB, 700 * kKiB));
  deallocate(retrying, ptr, 700 * kKiB, stream);
}

TEST_F(Adaptors, AFailureCallbackThatGivesUpLetsTheErrorThrough) {
  int calls = 0;
  const FailureCallbackAdaptor retrying(resource, [&](std::size_t) { return ++calls < 3; });
  EXPECT_THROW(allocate(retrying, std::size_t{1} << 50, stream), OutOfMemory);
  EXPECT_EQ(calls, 3);
  EXPECT_THROW(allocate(retrying, 100, stream, 3), InvalidArgument);
  EXPECT_EQ(calls, 3) << "only its exception calls it";
  EXPECT_THROW(FailureCallbackAdaptor(resource, FailureCallback()), InvalidArgument);
}

TEST_F(Adaptors, AFailureCallbackMayHaveAnExceptionOfItsOwn) {
  int calls = 0;
  const FailureCallbackAdaptor<MemoryResource, InvalidArgument> retrying(resource, [&](std::size_t) {
    ++calls;
    return false;
  });
  EXPECT_THROW(allocate(retrying, 100, stream, 3), InvalidArgument);
  EXPECT_EQ(calls, 1);
}

// ---- alignment -------------------------------------------------------------------------------------------------------

TEST_F(Adaptors, AnAlignmentReachesAnUpstreamThatKeepsIt) {
  const AlignmentAdaptor aligned{StatisticsAdaptor(resource), 64 * kKiB, 1000};
  void* const large = allocate(aligned, 1000, stream);
  EXPECT_EQ(address(large) % (64 * kKiB), 0U);
  EXPECT_EQ(allocator->requested_size(large), 1000U) << "no more than was asked for";
  deallocate(aligned, large, 1000, stream);
  void* const small = allocate(aligned, 999, stream);
  deallocate(aligned, small, 999, stream);
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

TEST_F(Adaptors, AnAlignmentIsMadeOverAnUpstreamThatKeepsNone) {
  const AlignmentAdaptor aligned{Coarse(resource), 64 * kKiB};
  std::vector<void*> live;
  for (const std::size_t bytes : {std::size_t{1}, 5 * kKiB, 3 * kMiB}) {
    live.push_back(allocate(aligned, bytes, stream));
    EXPECT_EQ(address(live.back()) % (64 * kKiB), 0U);
    EXPECT_EQ(address(allocate_sync(aligned, bytes, 4 * kMiB)) % (4 * kMiB), 0U) << "more than the adaptor's own";
  }
  deallocate(aligned, live[2], 3 * kMiB, stream);
  deallocate(aligned, live[0], 1, stream);
  deallocate(aligned, live[1], 5 * kKiB, stream);
  EXPECT_THROW(allocate(aligned, SIZE_MAX, stream), std::bad_alloc);
}

TEST_F(Adaptors, AnAlignmentIsAPowerOfTwo) {
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{768}}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { AlignmentAdaptor(resource, alignment); }),
                HasSubstr("an alignment of " + std::to_string(alignment) + " bytes: it must be a power of two"));
    EXPECT_THROW(allocate(AlignmentAdaptor(Coarse(resource), 512), 100, stream, alignment), InvalidArgument);
  }
}

// ---- together --------------------------------------------------------------------------------------------------------

TEST_F(Adaptors, Compose) {
  std::ostringstream out;
  int failures = 0;
  const StatisticsAdaptor counted(resource);
  const LimitAdaptor limited(counted, 3 * kMiB);
  const AlignmentAdaptor aligned(limited, 2 * kMiB);
  const LoggingAdaptor logged(aligned, out);
  const FailureCallbackAdaptor all(logged, [&](std::size_t) { return ++failures < 2; });
  void* const ptr = allocate(all, 2 * kMiB, stream);
  EXPECT_EQ(address(ptr) % (2 * kMiB), 0U);
  EXPECT_THROW(allocate(all, 2 * kMiB, stream), OutOfMemory);
  deallocate(all, ptr, 2 * kMiB, stream);
  EXPECT_EQ(failures, 2);
  EXPECT_EQ(counted.allocations_counter().total, 1);
  EXPECT_EQ(counted.bytes_counter().peak, static_cast<std::int64_t>(2 * kMiB));
  EXPECT_EQ(lines_of(out.str()).size(), 5U);
  EXPECT_EQ(&all.upstream_resource()
                 .upstream_resource()
                 .upstream_resource()
                 .upstream_resource()
                 .upstream_resource()
                 .allocator(),
            allocator.get());
}

TEST_F(Adaptors, ServeAfterTheyWereMovedFrom) {
  LimitAdaptor limited(resource, kMiB);
  const LimitAdaptor moved = std::move(limited);
  void* const ptr = allocate(limited, 1000, stream);  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(moved.allocated_bytes(), 1024U);
  deallocate(moved, ptr, 1000, stream);
}

TEST_F(Adaptors, AreHandlesThatShareTheirState) {
  const LimitAdaptor limited(resource, kMiB);
  const LimitAdaptor copy = limited;  // NOLINT(performance-unnecessary-copy-initialization): that is what is tested
  EXPECT_TRUE(copy == limited);
  EXPECT_TRUE(copy != LimitAdaptor(resource, kMiB));
  void* const ptr = allocate(copy, 1000, stream);
  EXPECT_EQ(limited.allocated_bytes(), 1024U);
  deallocate(limited, ptr, 1000, stream);
}

}  // namespace
}  // namespace cachalot
