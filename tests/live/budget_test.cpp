// The budget of a GPU between processes: parts, memory that goes back, refusals, damage, and real processes that join and end.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "cachalot/gpu_budget.h"
#include "cachalot/guard.h"
#include "diagnostics/budget_page.h"
#include "tests/allocator/forwarding_device.h"
#include "tests/allocator/testing.h"
#include "tests/live/testing.h"
#include "tests/process_life/forked_child.h"

namespace cachalot::testing {
namespace {

using Seconds = std::chrono::duration<double>;

BudgetOptions budget_options(const std::string& path, const std::string& name, double share = 1,
                             std::size_t floor = 0) {
  BudgetOptions options;
  options.path = path;
  options.name = name;
  options.share = share;
  options.floor_bytes = floor;
  return options;
}

// A process's allocator, here or in a child, and its membership.
struct Member {
  Member(const std::string& path, const std::string& name, double share = 1, std::size_t floor = 0,
         std::string_view heap = "heap:segments")
      : world(64 * kGiB, heap), budget(world.allocator, 0, budget_options(path, name, share, floor)) {}

  // Caches `bytes` bytes in pieces of 512 MiB.
  void cache(std::size_t bytes) {
    std::vector<void*> pieces;
    for (std::size_t made = 0; made < bytes; made += 512 * kMiB) pieces.push_back(world.allocate(512 * kMiB));
    for (void* piece : pieces) world.allocator.deallocate(piece);
  }

  World world;
  GpuBudget budget;
};

struct DeviceWithUuid;
struct NothingAround {
  explicit NothingAround(const DeviceWithUuid& /*device*/) {}
};
struct DeviceWithUuid : ForwardingDevice<DeviceWithUuid, NothingAround> {
  using ForwardingDevice::ForwardingDevice;
  DeviceProperties properties() const override {
    DeviceProperties properties = ForwardingDevice::properties();
    properties.uuid = {1, 2, 3};
    return properties;
  }
};

const BudgetMember& member_of(const BudgetFigures& figures, const std::string& name) {
  const auto found = std::ranges::find(figures.members, name, &BudgetMember::name);
  EXPECT_NE(found, figures.members.end()) << name;
  static const BudgetMember none;
  return found == figures.members.end() ? none : *found;
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const BudgetMember& member : read_budget(path).members) names.push_back(member.name);
  return names;
}

// Returns the seconds until it is so; the test fails after 20.
double seconds_until(const std::function<bool()>& condition) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(becomes(condition));
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

TEST(GpuBudget, DividesTheTotalByFloorsAndShares) {
  const tools::TemporaryFile file;
  const Member first(file.path(), "first", 3, 8 * kGiB);
  EXPECT_EQ(first.budget.path(), file.path());
  EXPECT_EQ(first.budget.part_bytes(), 64 * kGiB) << "the total is the device's memory";
  const Member second(file.path(), "second", 1, 16 * kGiB);
  EXPECT_EQ(second.budget.part_bytes(), 26 * kGiB);
  EXPECT_TRUE(becomes([&] { return first.budget.part_bytes() == 38 * kGiB; }));
  const BudgetFigures figures = read_budget(file.path());
  EXPECT_EQ(figures.total_bytes, 64 * kGiB);
  EXPECT_EQ(figures.gpu, first.world.device->properties().name);
  EXPECT_EQ(member_of(figures, "first").part_bytes, 38 * kGiB);
  EXPECT_EQ(member_of(figures, "first").floor_bytes, 8 * kGiB);
  EXPECT_EQ(member_of(figures, "second").share, 1);
  EXPECT_EQ(member_of(figures, "second").process_id, static_cast<std::uint64_t>(getpid()));
}

TEST(GpuBudget, AMemberGivesCachedMemoryBackAndKeepsWhatIsAllocated) {
  for (const char* heap : {"heap:segments", "heap:pages", "heap:async", "heap:managed"}) {
    const tools::TemporaryFile file;
    Member first(file.path(), "first", 1, 0, heap);
    void* const live = first.world.allocate(8 * kGiB);
    first.cache(48 * kGiB);
    EXPECT_EQ(first.world.reserved(), 56 * kGiB) << heap;
    auto second = std::make_unique<Member>(file.path(), "second", 3);
    EXPECT_LT(seconds_until([&] { return first.world.reserved() <= 16 * kGiB; }), 1) << heap;
    EXPECT_GT(first.world.reserved(), 15 * kGiB) << heap << ": no more than has to go";
    set_budget(file.path(), "second", 31, std::nullopt);
    EXPECT_LT(seconds_until([&] { return first.world.reserved() == 8 * kGiB; }), 1) << heap << ": its part is 2 GiB";
    EXPECT_TRUE(becomes([&] {
      const BudgetMember member = member_of(read_budget(file.path()), "first");
      return member.held_bytes == 8 * kGiB && member.live_bytes == 8 * kGiB && member.given_back_bytes == 48 * kGiB;
    }));
    second = nullptr;
    EXPECT_LT(seconds_until([&] { return first.budget.part_bytes() == 64 * kGiB; }), 1) << heap;
    first.world.allocator.deallocate(live);
  }
}

TEST(GpuBudget, EvictableTagsGiveWayAfterTheCache) {
  const tools::TemporaryFile file;
  Member member(file.path(), "one", 1, 0, "heap:pages");
  CachingAllocator& allocator = member.world.allocator;
  allocator.begin_tagged("adapter");
  void* const adapter = member.world.allocate(8 * kGiB);
  allocator.end_tagged("adapter");
  allocator.make_evictable("adapter", {0, {Keep::nothing, {}}, {}});
  allocator.ensure("adapter");
  member.cache(8 * kGiB);
  set_budget_total(file.path(), 4 * kGiB);
  EXPECT_LT(seconds_until([&] { return member.world.reserved() == 8 * kGiB; }), 1) << "the cache, but nothing held";
  allocator.let_go("adapter");
  EXPECT_LT(seconds_until([&] { return member.world.reserved() == 0; }), 12) << "tried again at the latest after 10 s";
  allocator.deallocate(adapter);
}

TEST(GpuBudget, AMemberLeavesMemoryFreeForProgramsOutsideOfTheBudget) {
  const tools::TemporaryFile file;
  World world;
  world.allocator.deallocate(world.allocate(20 * kGiB));
  BudgetOptions options;
  options.path = file.path();
  options.keep_free_bytes = 8 * kGiB;
  const GpuBudget budget(world.allocator, 0, options);
  const auto outside = world.device->malloc(38 * kGiB);  // of 64 GiB
  ASSERT_TRUE(outside.has_value());
  EXPECT_LT(seconds_until([&] { return world.device->memory_info().free_bytes >= 8 * kGiB; }), 1);
  world.device->free(*outside);
}

TEST(GpuBudget, AMemberGoesOnAfterTheDriverHasFailed) {
  const tools::TemporaryFile file;
  World world;
  world.allocator.deallocate(world.allocate(20 * kGiB));
  BudgetOptions options;
  options.path = file.path();
  options.keep_free_bytes = 8 * kGiB;
  const GpuBudget budget(world.allocator, 0, options);
  world.device->set_faults({{.call = DeviceCall::memory_info, .out_of_memory = false, .code = 999, .repeat = true}});
  EXPECT_TRUE(becomes([&] { return world.device->faults_injected() > 0; }));
  world.device->set_faults({});
  const auto outside = world.device->malloc(38 * kGiB);  // of 64 GiB
  EXPECT_LT(seconds_until([&] { return world.device->memory_info().free_bytes >= 8 * kGiB; }), 1);
  world.device->free(*outside);
}

TEST(GpuBudget, AMemberGoesOnAfterTheGuardsHandlerHasThrown) {
  const tools::TemporaryFile file;
  World world(64 * kGiB, "guard:True,heap:pages");
  std::atomic<int> reports = 0;
  AllocatorGuard(world.allocator).set_handler([&](const GuardReport&) {
    ++reports;
    throw std::runtime_error("a report");
  });
  const GpuBudget budget(world.allocator, 0, budget_options(file.path(), "one"));
  world.allocator.begin_tagged("a");
  char* const ptr = static_cast<char*>(world.allocate(kGiB));
  world.allocator.end_tagged("a");
  world.allocator.make_evictable("a", {});
  world.device->copy_from_host(address(ptr) - 1, "x", 1);
  set_budget_total(file.path(), kMiB);
  EXPECT_TRUE(becomes([&] { return reports > 0; }));
  EXPECT_TRUE(becomes([&] { return world.reserved() == 0; }));
  const auto written = [&] { return member_of(read_budget(file.path()), "one").written_ns; };
  const std::int64_t at = written();
  EXPECT_TRUE(becomes([&] { return written() > at; })) << "figures are written each second";
}

TEST(GpuBudget, APieceThatIsLargerThanWhatIsToGoGoesAsWell) {
  const tools::TemporaryFile file;
  Member member(file.path(), "one");
  member.world.allocator.deallocate(member.world.allocate(4 * kGiB));
  member.world.allocator.deallocate(member.world.allocate(4 * kGiB, reinterpret_cast<Stream>(16)));
  EXPECT_EQ(member.budget.give_back(100 * kMiB), 4 * kGiB);
  EXPECT_EQ(member.budget.give_back(8 * kGiB), 4 * kGiB);
  EXPECT_EQ(member.budget.give_back(kGiB), 0u);
}

TEST(GpuBudget, MemoryThatIsTakenBeyondThePartIsGivenBackOnceItIsCached) {
  const tools::TemporaryFile file;
  Member member(file.path(), "one");
  set_budget_total(file.path(), 4 * kGiB);
  EXPECT_TRUE(becomes([&] { return member.budget.part_bytes() == 4 * kGiB; }));
  void* const live = member.world.allocate(6 * kGiB);  // is not refused
  member.cache(2 * kGiB);
  EXPECT_LT(seconds_until([&] { return member.world.reserved() == 6 * kGiB; }), 1);
  member.world.allocator.deallocate(live);
  EXPECT_LT(seconds_until([&] { return member.world.reserved() == 0; }), 1) << "it is one segment";
}

TEST(GpuBudget, AMemberWithNothingToDoMakesNoCallOfTheDriver) {
  const tools::TemporaryFile file;
  Member member(file.path(), "one", 1, 0, "heap:pages");
  member.cache(2 * kGiB);
  const auto calls = [&] {
    std::uint64_t sum = 0;
    for (const DeviceCall call :
         {DeviceCall::event_query, DeviceCall::memory_info, DeviceCall::unmap, DeviceCall::free})
      sum += member.world.count(call);
    return sum;
  };
  const std::uint64_t before = calls();
  const auto written = [&] { return member_of(read_budget(file.path()), "one").written_ns; };
  const std::int64_t at = written();
  EXPECT_TRUE(becomes([&] { return written() > at + 1'500'000'000; })) << "figures are written each second";
  EXPECT_EQ(calls(), before);
  EXPECT_LT(member_of(read_budget(file.path()), "one").cpu_ns, 100'000'000);
}

// --- Mistakes ---------------------------------------------------------------------------------------------------------------

TEST(GpuBudget, RefusesBadValuesByNameAndChangesNothing) {
  const tools::TemporaryFile file;
  const Member trainer(file.path(), "trainer", 1, 40 * kGiB);
  const Member twin(file.path(), "twin");
  const Member other_twin(file.path(), "twin");
  World world;
  const auto settings = [&] {
    std::string all;
    for (const BudgetMember& member : read_budget(file.path()).members)
      all += member.name + " " + std::to_string(member.share) + " " + std::to_string(member.floor_bytes) + "\n";
    return all + std::to_string(read_budget(file.path()).total_bytes);
  };
  const std::string before = settings();
  const auto joining = [&](const std::string& name, double share, std::size_t floor) {
    return refusal([&] { GpuBudget(world.allocator, 0, budget_options(file.path(), name, share, floor)); });
  };
  for (const double share : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), 1e300, 2e6})
    EXPECT_CONTAINS(joining("late", share, 0), "it must be a number from 0.001 to 1000000");
  EXPECT_CONTAINS(
      joining("late", 1, 25 * kGiB),
      "a floor of 25.00 GiB: it may be at most 24.00 GiB, since the other floors are 40.00 GiB of a total of "
      "64.00 GiB");
  EXPECT_CONTAINS(joining("17", 1, 0), "the name '17' is a number");
  EXPECT_CONTAINS(joining("a\nb", 1, 0), "has a control character");
  EXPECT_CONTAINS(joining(std::string(40, 'x'), 1, 0), "has 40 bytes; it may have 39");
  const auto setting = [&](const std::string& name, std::optional<double> share, std::optional<std::size_t> floor) {
    return refusal([&] { set_budget(file.path(), name, share, floor); });
  };
  EXPECT_CONTAINS(setting("trainer", 0.0, {}), "a share of 0");
  EXPECT_CONTAINS(setting("trainer", 2.0, 65 * kGiB), "a floor of 65.00 GiB: it may be at most 64.00 GiB");
  EXPECT_EQ(setting("trianer", 1.0, {}), "'trianer' is no member of the budget; did you mean 'trainer'?");
  EXPECT_CONTAINS(setting("twin", 1.0, {}), "'twin' is 2 members, of the processes " + std::to_string(getpid()) + ", ");
  EXPECT_CONTAINS(setting("1", 1.0, {}), "'1' is no member of the budget");
  const auto total = [&](std::size_t bytes) { return refusal([&] { set_budget_total(file.path(), bytes); }); };
  EXPECT_CONTAINS(total(39 * kGiB), "a total of 39.00 GiB: it must be at least 40.00 GiB, the sum of the floors");
  EXPECT_CONTAINS(total(0), "a total of 0 bytes");
  EXPECT_EQ(settings(), before);
}

TEST(GpuBudget, RefusesFilesThatAreNoBudgetOfThisUser) {
  World world;
  const tools::TemporaryFile sound;
  set_budget_total(sound.path(), kGiB);
  const std::string page = tools::read_whole(sound.path());
  const auto refusals = [&](const std::string& path) {
    const std::string joining = refusal([&] { GpuBudget(world.allocator, 0, budget_options(path, "one")); });
    EXPECT_EQ(joining, refusal([&] { read_budget(path); }));
    return joining;
  };
  const auto changed = [&](std::size_t offset, char to) {
    std::string copy = page;
    copy[offset] = to;
    return copy;
  };
  const tools::TemporaryFile text(std::string(4096, 'x'));
  EXPECT_CONTAINS(refusals(text.path()), text.path() + ": it is no budget");
  const tools::TemporaryFile small(page.substr(1));
  EXPECT_CONTAINS(refusals(small.path()), "has 4095 bytes: it must have 4096");
  const tools::TemporaryFile newer(changed(offsetof(BudgetHeader, layout_version), 2));
  EXPECT_CONTAINS(refusals(newer.path()), "its layout has version 2, and this library knows 1");
  const tools::TemporaryFile other_sizes(changed(offsetof(BudgetHeader, entry_bytes), 64));
  EXPECT_CONTAINS(refusals(other_sizes.path()), "its sizes are not those of its layout");
  const tools::TemporaryFile link;
  std::filesystem::create_symlink(sound.path(), link.path());
  EXPECT_CONTAINS(refusals(link.path()), "is a link: it must be a regular file");
  const tools::TemporaryFile second_name;
  std::filesystem::create_hard_link(sound.path(), second_name.path());
  EXPECT_CONTAINS(refusals(sound.path()), "has 2 names");
  EXPECT_CONTAINS(refusals("/dev/null"), "is no file");
  EXPECT_CONTAINS(refusal([&] { read_budget(sound.path() + ".none"); }), "No such file");
  const tools::TemporaryFile others(page);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(others.path().c_str(), 4711, 0), 0);
    EXPECT_CONTAINS(refusals(others.path()), "is user 4711's: it must be this user's, 0");
  }
  EXPECT_EQ(tools::read_whole(text.path()), std::string(4096, 'x'));
}

TEST(GpuBudget, IsOneGpusAndHasRoomFor31Members) {
  const tools::TemporaryFile file;
  World world;
  std::vector<std::unique_ptr<GpuBudget>> members;
  for (std::size_t i = 0; i < kBudgetEntries; ++i)
    members.push_back(std::make_unique<GpuBudget>(world.allocator, 0, budget_options(file.path(), "one")));
  const auto joining = [&] { GpuBudget(world.allocator, 0, budget_options(file.path(), "late")); };
  EXPECT_CONTAINS(refusal(joining), "has 31 members, as many as it has room for");
  members.pop_back();
  EXPECT_NO_THROW(joining());
  std::fstream page(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  page.seekp(offsetof(BudgetHeader, uuid)) << "0123456789abcdef";
  page.close();
  CachingAllocator of_another({std::make_shared<DeviceWithUuid>(world.device)});
  EXPECT_CONTAINS(refusal([&] { GpuBudget(of_another, 0, budget_options(file.path(), "late")); }),
                  "is that of GPU 30313233-3435-3637-3839-616263646566, and device 0 is GPU 01020300-");
}

TEST(GpuBudget, ADamagedPageBoundsNobodyUntilItIsRemoved) {
  const tools::TemporaryFile file;
  Member first(file.path(), "first", 1, kGiB);
  Member second(file.path(), "second");
  set_budget(file.path(), "second", 3, std::nullopt);
  EXPECT_TRUE(becomes([&] { return second.budget.part_bytes() > 40 * kGiB; }));
  for (const auto& damage : std::vector<std::function<void()>>{
           [&] { ASSERT_EQ(truncate(file.path().c_str(), 0), 0) << "an empty file is a page that is to be made"; },
           [&] { ASSERT_EQ(truncate(file.path().c_str(), 100), 0); },
           [&] { std::ofstream(file.path()) << std::string(4096, '\xff'); },
           [&] {
             std::fstream(file.path(), std::ios::in | std::ios::out).seekp(128 + 24) << std::string(8, '\xff');
           }}) {
    damage();
    if (std::filesystem::file_size(file.path()) != 0) {
      EXPECT_THROW(read_budget(file.path()), InvalidArgument);
      EXPECT_TRUE(
          becomes([&] { return first.budget.part_bytes() == SIZE_MAX && second.budget.part_bytes() == SIZE_MAX; }));
      first.cache(kGiB);
      std::filesystem::remove(file.path());
    }
    EXPECT_TRUE(becomes([&] {
      try {
        return names_in(file.path()).size() == 2;
      } catch (const InvalidArgument&) {
        return false;
      }
    }));
    EXPECT_TRUE(becomes([&] { return member_of(read_budget(file.path()), "second").part_bytes < 48 * kGiB; }));
    EXPECT_EQ(member_of(read_budget(file.path()), "second").share, 3) << "settings outlast the page";
    EXPECT_EQ(member_of(read_budget(file.path()), "first").floor_bytes, kGiB);
  }
}

TEST(GpuBudget, MembersOfAPageThatWasMovedAwayMakeANewOne) {
  const tools::TemporaryFile file;
  const Member member(file.path(), "one");
  const std::string moved = file.path() + ".old";
  std::filesystem::rename(file.path(), moved);
  EXPECT_TRUE(becomes([&] { return std::filesystem::exists(file.path()); }));
  EXPECT_TRUE(becomes([&] { return names_in(moved).empty(); }));
  EXPECT_EQ(names_in(file.path()), std::vector<std::string>{"one"});
  std::filesystem::remove(moved);
}

TEST(GpuBudget, EntriesThatNoProcessHoldsAreFreeWhateverTheySay) {
  const tools::TemporaryFile file;
  set_budget_total(file.path(), 64 * kGiB);
  std::string page = tools::read_whole(file.path());
  BudgetContent content;
  std::memcpy(&content, page.data(), sizeof(content));
  for (BudgetEntry& entry : content.entries) {
    entry.is_used = 1;
    entry.share = -1;
    entry.floor_bytes = 60 * kGiB;
  }
  page.assign(reinterpret_cast<const char*>(&content), sizeof(content));
  std::ofstream(file.path()) << page;
  EXPECT_EQ(names_in(file.path()), std::vector<std::string>{});
  const Member member(file.path(), "one", 1, 60 * kGiB);
  EXPECT_EQ(names_in(file.path()), std::vector<std::string>{"one"});
  EXPECT_EQ(member.budget.part_bytes(), 64 * kGiB);
}

// --- Processes --------------------------------------------------------------------------------------------------------------

// Makes this process the first of a namespace of process ids, as that of a container is. The process that it was waits for it.
void enter_namespace() {
  if (unshare(CLONE_NEWPID) != 0) _exit(1);
  const pid_t first = fork();
  if (first != 0) {
    waitpid(first, nullptr, 0);
    _exit(0);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// A child that is a member until it is told to end.
class ChildMember {
 public:
  ChildMember(
      const std::string& path, const std::string& name, void (*begin)() = [] {}) {
    EXPECT_EQ(pipe(told_), 0);
    process_ = fork();
    if (process_ != 0) return;
    alarm(kDeadlockSeconds);
    close(told_[1]);
    begin();
    {
      Member member(path, name);
      void* const live = member.world.allocate(kGiB);
      member.cache(40 * kGiB);
      char byte = 0;
      static_cast<void>(::read(told_[0], &byte, 1));
      member.world.allocator.deallocate(live);
    }
    _exit(0);
  }
  ~ChildMember() {
    close(told_[0]);
    close(told_[1]);
    waitpid(process_, nullptr, 0);
  }
  ChildMember(const ChildMember&) = delete;
  ChildMember& operator=(const ChildMember&) = delete;

  void kill_now() const { kill(process_, SIGKILL); }

 private:
  int told_[2] = {-1, -1};
  pid_t process_ = -1;
};

TEST(BudgetProcesses, TheFirstGivesBackWhenASecondJoinsAndAKilledOneIsNoMember) {
  const tools::TemporaryFile file;
  const ChildMember first(file.path(), "first");
  const auto held = [&](const std::string& name) { return member_of(read_budget(file.path()), name).held_bytes; };
  ASSERT_TRUE(becomes([&] { return std::filesystem::exists(file.path()) && held("first") == 41 * kGiB; }));
  const ChildMember second(file.path(), "second");
  ASSERT_TRUE(becomes([&] { return names_in(file.path()).size() == 2; }));
  EXPECT_LT(seconds_until([&] { return held("first") == 32 * kGiB; }), 1);
  EXPECT_TRUE(becomes([&] { return held("second") == 32 * kGiB; }));
  set_budget(file.path(), "second", 15, std::nullopt);
  EXPECT_LT(seconds_until([&] { return held("first") == 4 * kGiB; }), 1);
  second.kill_now();
  EXPECT_LT(seconds_until([&] { return names_in(file.path()) == std::vector<std::string>{"first"}; }), 1);
  EXPECT_EQ(member_of(read_budget(file.path()), "first").part_bytes, 64 * kGiB);
  const Member third(file.path(), "third", 1, 60 * kGiB);
  EXPECT_EQ(names_in(file.path()), (std::vector<std::string>{"first", "third"}));
}

TEST(BudgetProcesses, AMemberOfAnotherNamespaceOfProcessIdsLivesAndEndsInThisOneToo) {
  if (status_of_child([] { _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1); }) != 0)
    GTEST_SKIP() << "no right to make a namespace";
  const tools::TemporaryFile file;
  const Member here(file.path(), "here");
  const ChildMember there(file.path(), "there", enter_namespace);
  ASSERT_TRUE(becomes([&] { return names_in(file.path()).size() == 2; }));
  EXPECT_EQ(member_of(read_budget(file.path()), "there").process_id, 1u) << "there";
  EXPECT_TRUE(becomes([&] { return member_of(read_budget(file.path()), "there").held_bytes == 32 * kGiB; }));
  there.kill_now();
  EXPECT_LT(seconds_until([&] { return names_in(file.path()) == std::vector<std::string>{"here"}; }), 1);
}

TEST(BudgetProcesses, EightThatJoinAndLeaveKeepThePageSound) {
  const tools::TemporaryFile file;
  set_budget_total(file.path(), 12 * kGiB);  // the floors of all are 15 GiB
  std::vector<pid_t> children;
  for (std::size_t i = 0; i < 8; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    alarm(kDeadlockSeconds);
    World world;
    for (int round = 0; round < 300; ++round) {
      try {
        const GpuBudget budget(world.allocator, 0,
                               budget_options(file.path(), "child" + std::to_string(i), 2, (1 + i % 3) * kGiB));
        set_budget(file.path(), std::to_string(getpid()), 2, std::nullopt);
      } catch (const InvalidArgument& error) {
        if (!contains(error.what(), "the other floors are")) _exit(2);
      }
    }
    _exit(0);
  }
  for (int looks = 0; looks < 1000; ++looks) {  // throws for a page that is not sound
    const BudgetFigures figures = read_budget(file.path());
    std::size_t parts = 0;
    for (const BudgetMember& member : figures.members) parts += member.part_bytes;
    EXPECT_LE(parts, 12 * kGiB);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(names_in(file.path()), std::vector<std::string>{});
}

TEST(BudgetProcesses, AForkedChildIsNoMemberAndKeepsNoEntry) {
  const tools::TemporaryFile file;
  auto member = std::make_unique<Member>(file.path(), "parent");
  // The address sanitizer's allocator does not take its locks at a fork, and the member's thread may hold one while it starts.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int status = status_of_child([&] {
    EXPECT_EQ(member->budget.give_back(kGiB), 0u);
    const Member own(file.path(), "child");
    EXPECT_EQ(names_in(file.path()), (std::vector<std::string>{"parent", "child"}));
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(names_in(file.path()), std::vector<std::string>{"parent"});
  const pid_t idle = fork();
  if (idle == 0) {
    pause();
    _exit(0);
  }
  member = nullptr;
  EXPECT_EQ(names_in(file.path()), std::vector<std::string>{}) << "the child keeps no lock";
  kill(idle, SIGKILL);
  waitpid(idle, nullptr, 0);
}

}  // namespace
}  // namespace cachalot::testing
