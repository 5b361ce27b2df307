// Programs over the C API, with true and with made-up pointers, sizes, devices and texts. A call succeeds, or says why not and
// leaves every allocation as it was.
#include "cachalot/c_api.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/bytes.h"

namespace cachalot::fuzz {
namespace {

constexpr int kDevices = 2;
const bool kEnvironmentIsSet = [] {
  setenv("CACHALOT_SIM", "devices:2,memory:64MiB", 1);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  const char* const heap = std::getenv("CACHALOT_CONF");
  if (heap == nullptr) setenv("CACHALOT_CONF", "heap:pages", 1);
  return true;
}();

struct Allocation {
  void* ptr;
  std::size_t size;
  int device;
};

using BytesByDevice = std::array<std::size_t, kDevices>;

BytesByDevice allocated_bytes() {
  BytesByDevice allocated;
  for (int device = 0; device < kDevices; ++device) {
    allocated[static_cast<std::size_t>(device)] = cachalot_memory_allocated(device);
  }
  return allocated;
}

std::size_t count_allocations(int device) {
  constexpr const char* kKey = "\"allocation.all.current\":";
  char* const statistics = cachalot_memory_stats_json(device);
  if (statistics == nullptr) broken(cachalot_last_error());
  const char* const found = std::strstr(statistics, kKey);
  expect(found != nullptr, "the statistics have no count of allocations");
  const std::size_t count = std::strtoull(found + std::strlen(kKey), nullptr, 10);
  cachalot_string_free(statistics);
  return count;
}

// Chosen by the environment, for as long as the process lives.
bool is_guarded() {
  static const bool guarded = [] {
    char* const reports = cachalot_check_guard_json();
    cachalot_string_free(reports);
    return reports != nullptr;
  }();
  return guarded;
}

class Player {
 public:
  explicit Player(Bytes& bytes) : bytes_(bytes) {}

  void play() {
    expect(kEnvironmentIsSet, "no environment");
    expect_ok(cachalot_configure(""));  // whatever the program before this one has set
    while (!bytes_.empty()) {
      allocated_before_ = allocated_bytes();
      step();
    }
    for (void* const base : opened_) expect_ok(cachalot_close_shared(base));
    for (const char* tag : tags_) {
      for (int device = 0; device < kDevices; ++device) {
        while (cachalot_end_tagged(tag, device) == CACHALOT_OK) {
        }
        cachalot_restore_physical(tag, device);
      }
    }
    while (!live_.empty()) free_live(0);
    for (int device = 0; device < kDevices; ++device) {
      expect_ok(cachalot_set_memory_fraction(1, device));
      expect_ok(cachalot_empty_cache(device));
      if (cachalot_memory_reserved(device) != 0) broken("at the end, memory is reserved");
    }
  }

 private:
  void step() {
    switch (bytes_.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return allocate(bytes_.word() % (4 << 20), some_true_device());
      case 4:
        return allocate(some_size(), some_device());
      case 5:
      case 6:
      case 7:
        if (!live_.empty()) free_live(bytes_.byte() % live_.size());
        return;
      case 8:
        return free_wrong();
      case 9:
        return record_stream();
      case 10:
        return share();
      case 11:
        return open_made_up();
      case 12:
        return check(cachalot_set_memory_fraction(some_fraction(), some_device()));
      case 13:
        return figures();
      case 14:
        return check(bytes_.below(2) == 0 ? cachalot_empty_cache(some_device())
                                          : cachalot_drain_thread_caches(some_device()));
      case 15:
        return configure();
      case 16:
        return tagged();
      case 17:
        return check(cachalot_enable_peer_access(some_device(), some_device()));
      case 18:
        return check(bytes_.below(2) == 0 ? cachalot_reset_peak_memory_stats(some_device())
                                          : cachalot_reset_accumulated_memory_stats(some_device()));
      default:
        return texts();
    }
  }

  // ---- calls

  void allocate(std::size_t size, int device) {
    const unsigned flags = bytes_.below(8) == 0 ? bytes_.byte() : 0;
    void* const ptr = flags == 0 ? cachalot_malloc(size, device, some_stream())
                                 : cachalot_malloc_with_flags(size, device, some_stream(), flags);
    if (ptr != nullptr) {
      expect(0 <= device && device < kDevices && size != 0, "memory of no device, or of no size");
      expect(*cachalot_last_error() == '\0', "an error beside a pointer");
      live_.push_back({ptr, size, device});
    } else if (size != 0 || *cachalot_last_error() != '\0') {
      expect_refused("no memory and no reason");
    }
  }

  void free_live(std::size_t which) {
    const Allocation allocation = live_[which];
    live_[which] = live_.back();
    live_.pop_back();
    cachalot_free(allocation.ptr, allocation.size, allocation.device, nullptr);
    if (*cachalot_last_error() != '\0') broken(std::string("a true free: ") + cachalot_last_error());
  }

  // With one of its values wrong: refused, and the allocation lives on.
  void free_wrong() {
    if (live_.empty()) return;
    const Allocation& right = live_[bytes_.byte() % live_.size()];
    Allocation wrong = right;
    const std::uint32_t dice = bytes_.below(3);
    if (dice == 0) wrong.size = some_size();
    if (dice == 1) wrong.device = some_device();
    if (dice == 2) wrong.ptr = static_cast<char*>(wrong.ptr) + 1 + bytes_.word();
    if (wrong.size == right.size && wrong.device == right.device && wrong.ptr == right.ptr) return;
    for (const Allocation& other : live_) {
      if (wrong.ptr == other.ptr && dice == 2) return;
    }
    cachalot_free(wrong.ptr, wrong.size, wrong.device, nullptr);
    expect_refused("a free with a wrong value was taken");
  }

  void record_stream() {
    void* const ptr = live_.empty() ? reinterpret_cast<void*>(std::uintptr_t{bytes_.word()})
                                    : live_[bytes_.byte() % live_.size()].ptr;
    check(cachalot_record_stream(ptr, some_stream()));
  }

  // Another device of the process plays the other process.
  void share() {
    if (live_.empty()) return;
    const Allocation& allocation = live_[bytes_.byte() % live_.size()];
    cachalot_shared_t shared;
    if (cachalot_share(allocation.ptr, &shared) != CACHALOT_OK) return expect_refused("not shared, for no reason");
    if (bytes_.below(2) == 0) change(shared);
    open(shared, some_device());
  }

  void open_made_up() {
    cachalot_shared_t shared;
    auto* const at = reinterpret_cast<unsigned char*>(&shared);
    for (std::size_t i = 0; i < sizeof(shared); ++i) at[i] = bytes_.byte();
    shared.kind = static_cast<int>(bytes_.below(5)) - 1;
    open(shared, some_device());
  }

  void change(cachalot_shared_t& shared) {
    if (bytes_.below(4) == 0) shared.descriptor = static_cast<int>(bytes_.byte()) - 10;
    if (bytes_.below(4) == 0) shared.handle_size = some_size();
    if (bytes_.below(4) == 0) shared.offset = some_size();
    if (bytes_.below(4) == 0) shared.size = some_size();
    if (bytes_.below(4) == 0) shared.bytes[bytes_.below(64)] = bytes_.byte();
  }

  void open(const cachalot_shared_t& shared, int device) {
    void* const base = cachalot_open_shared(&shared, device);
    if (base == nullptr) return expect_refused("not opened, for no reason");
    opened_.push_back(base);
  }

  void figures() {
    const int device = some_device();
    cachalot_fragmentation_t figures;
    check(cachalot_fragmentation(device, bytes_.below(4) == 0 ? nullptr : &figures));
    // Reserved memory is not compared: memory that sleeps is allocated still.
    expect(cachalot_memory_allocated(device) <= cachalot_max_memory_allocated(device),
           "more is allocated than ever was");
    cachalot_max_memory_allocated(device);
    cachalot_max_memory_reserved(device);
  }

  void configure() {
    static constexpr const char* kTexts[] = {"",
                                             "heap:segments",
                                             "max_split_size_mb:20",
                                             "garbage_collection_threshold:0.5",
                                             "roundup_power2_divisions:4",
                                             "heap:pages,thread_cache:False",
                                             "a:b",
                                             ":",
                                             "max_split_size_mb:18446744073709551616"};
    if (bytes_.below(2) == 0) return check(cachalot_configure(kTexts[bytes_.below(std::size(kTexts))]));
    std::string text;
    for (std::uint32_t left = bytes_.below(24); left > 0; --left) text += static_cast<char>(bytes_.byte());
    check(cachalot_configure(text.c_str()));
  }

  void tagged() {
    const char* const tag = bytes_.below(8) == 0 ? nullptr : tags_[bytes_.below(std::size(tags_))];
    const int device = some_device();
    const std::uint32_t dice = bytes_.below(4);
    if (dice == 0) check(cachalot_begin_tagged(tag, device));
    if (dice == 1) check(cachalot_end_tagged(tag, device));
    if (dice == 2) check(cachalot_release_physical(tag, static_cast<int>(bytes_.below(2)), nullptr, device));
    if (dice == 3) check(cachalot_restore_physical(tag, device));
  }

  void texts() {
    char* const text = bytes_.below(3) == 0   ? cachalot_snapshot_json()
                       : bytes_.below(2) == 0 ? cachalot_memory_stats_json(some_device())
                                              : cachalot_check_guard_json();
    if (text == nullptr) return expect_refused("no text and no reason");
    cachalot_string_free(text);
  }

  // ---- values

  int some_true_device() { return static_cast<int>(bytes_.below(kDevices)); }
  int some_device() {
    const std::uint32_t dice = bytes_.below(8);
    if (dice < 6) return static_cast<int>(dice) % kDevices;
    return dice == 6 ? static_cast<int>(bytes_.byte()) - 128 : static_cast<int>(1u << bytes_.below(31));
  }
  std::size_t some_size() {
    const std::uint32_t dice = bytes_.below(4);
    if (dice == 0) return ~std::size_t{0} - bytes_.word();
    if (dice == 1) return (std::size_t{1} << bytes_.below(64)) - bytes_.below(2);
    return bytes_.word();
  }
  double some_fraction() {
    const double fraction = bytes_.byte() / 200.0;
    return bytes_.below(8) == 0 ? -fraction : fraction;
  }
  cudaStream_t some_stream() {
    return reinterpret_cast<cudaStream_t>(std::uintptr_t{bytes_.below(4)} << (bytes_.below(8) == 0 ? 40 : 12));
  }

  void check(int code) const {
    expect(code != CACHALOT_E_INTERNAL, cachalot_last_error());
    if (code != CACHALOT_OK) expect_refused("a code without a message");
  }

  // The call before this one failed. It says why, and allocated memory is still allocated. Reserved memory may be less:
  // where memory is short, cached memory goes back to the device first. So does memory that a guard keeps, which counts as
  // allocated.
  void expect_refused(const char* for_no_reason) const {
    expect(*cachalot_last_error() != '\0', for_no_reason);
    if (is_guarded()) return;
    expect(allocated_bytes() == allocated_before_, "a call that failed has changed how many bytes are allocated");
    for (int device = 0; device < kDevices; ++device) {
      expect(count_allocations(device) == count_live(device), "a call that failed has changed what is allocated");
    }
  }
  std::size_t count_live(int device) const {
    const auto count = std::count_if(live_.begin(), live_.end(),
                                     [device](const Allocation& allocation) { return allocation.device == device; });
    return static_cast<std::size_t>(count);
  }

  static void expect_ok(int code) {
    if (code != CACHALOT_OK) broken(cachalot_last_error());
  }

  Bytes& bytes_;
  std::vector<Allocation> live_;
  std::vector<void*> opened_;
  BytesByDevice allocated_before_ = {};  // the step that is played
  static constexpr const char* tags_[] = {"a", "weights", ""};
};

}  // namespace
}  // namespace cachalot::fuzz

// The C API's allocator is never destroyed, and what it points to from mapped memory looks lost at the end.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cachalot::Bytes bytes(data, size);
  cachalot::fuzz::Player(bytes).play();
  return 0;
}
