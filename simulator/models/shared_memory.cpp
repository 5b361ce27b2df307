#include "simulator/models/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "simulator/device/address_space.h"

namespace cachalot::simulator {
namespace {

[[noreturn]] void fail_file(const std::string& path) {
  throw InvalidArgument(formatted("CACHALOT_SIM: option shared: '{}' cannot be used: {}", path, std::strerror(errno)));
}

// Returns the lock of one byte of the file.
struct flock lock_of(std::int64_t byte, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// Returns whether fcntl has done it.
bool call_fcntl(int file, int command, struct flock& lock) {
  int done = -1;
  while ((done = fcntl(file, command, &lock)) != 0 && errno == EINTR) {
  }
  return done == 0;
}

// Returns the number of the other process that has the slot; 0: none does.
int process_of(int file, std::size_t slot) {
  struct flock lock = lock_of(SharedMemoryFile::kFirstSlotByte + static_cast<std::int64_t>(slot), F_WRLCK);
  return call_fcntl(file, F_GETLK, lock) && lock.l_type != F_UNLCK ? lock.l_pid : 0;
}

std::vector<DeviceUser> users_of(int file, const SharedMemoryFile& shared, int physical_device) {
  std::vector<DeviceUser> users;
  for (std::size_t slot = 0; slot < shared.used_slots; ++slot) {
    const std::size_t bytes = shared.slots[slot].used_bytes[static_cast<std::size_t>(physical_device)];
    const int process = bytes == 0 ? 0 : process_of(file, slot);
    if (process != 0) users.push_back({process, bytes});
  }
  return users;
}

// Returns the file's content, as others change it; null if there is no such file.
const SharedMemoryFile* map_to_read(int file) {
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0 || status.st_size != sizeof(SharedMemoryFile)) return nullptr;
  void* const mapped = mmap(nullptr, sizeof(SharedMemoryFile), PROT_READ, MAP_SHARED, file, 0);
  const auto* const shared = mapped == MAP_FAILED ? nullptr : static_cast<const SharedMemoryFile*>(mapped);
  return shared != nullptr && shared->kind == SharedMemoryFile::kKind ? shared : nullptr;
}

}  // namespace

class SharedMemory::Locked {
 public:
  explicit Locked(SharedMemory& shared) : shared_(shared), lock_(shared.mutex_) {
    shared_.lock_byte(SharedMemoryFile::kMutexByte, F_SETLKW, F_WRLCK);
  }
  ~Locked() { shared_.lock_byte(SharedMemoryFile::kMutexByte, F_SETLK, F_UNLCK); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  SharedMemory& shared_;
  const std::lock_guard<std::mutex> lock_;
};

SharedMemory::SharedMemory(const std::string& path) {
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0) fail_file(path);
  const Locked locked(*this);
  const bool is_new = require_own_file(path);
  if (is_new && ftruncate(file_, sizeof(SharedMemoryFile)) != 0) fail_file(path);
  void* const mapped = mmap(nullptr, sizeof(SharedMemoryFile), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) fail_file(path);
  shared_ = static_cast<SharedMemoryFile*>(mapped);
  if (is_new) shared_->kind = SharedMemoryFile::kKind;
  own_slot_ = take_slot(path);
}

// Nothing is written to a file that another program has made. Returns whether the file is empty.
bool SharedMemory::require_own_file(const std::string& path) const {
  struct stat status {};
  if (fstat(file_, &status) != 0) fail_file(path);
  if (S_ISREG(status.st_mode) && status.st_size == 0) return true;
  std::uint64_t kind = 0;
  const bool is_one = status.st_size == sizeof(SharedMemoryFile) &&
                      pread(file_, &kind, sizeof(kind), 0) == sizeof(kind) && kind == SharedMemoryFile::kKind;
  if (is_one) return false;
  throw InvalidArgument(
      formatted("CACHALOT_SIM: option shared: '{}' cannot be used: it is neither empty nor a file in which "
                "simulated processes keep what they take of the devices",
                path));
}

MemoryAccount SharedMemory::account(int physical_device, std::size_t memory_bytes) {
  const auto device = static_cast<std::size_t>(physical_device);
  memory_bytes = round_down(memory_bytes, kPhysicalUnit);
  return {[=, this](std::size_t bytes) { return take(device, bytes, memory_bytes); },
          [=, this](std::size_t bytes) { give_back(device, bytes); },
          [=, this] { return memory_bytes - std::min(memory_bytes, used_bytes(device)); }};
}

bool SharedMemory::lock_byte(std::int64_t byte, int command, short type) const {
  struct flock lock = lock_of(byte, type);
  return call_fcntl(file_, command, lock);
}

bool SharedMemory::is_alive(std::size_t slot) const { return slot == own_slot_ || process_of(file_, slot) != 0; }

// A process holds no lock against itself: its own slot has no other process.
std::vector<DeviceUser> SharedMemory::others(int physical_device) {
  const Locked locked(*this);
  return users_of(file_, *shared_, physical_device);
}

// The file stays open: to close it would end the locks by which the process holds its slot, if it has one.
std::vector<DeviceUser> SharedMemory::users(const std::string& path, int physical_device) {
  static std::mutex mutex;
  static int file = -1;
  static const SharedMemoryFile* shared = nullptr;
  const std::lock_guard lock(mutex);
  if (file < 0) file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (shared == nullptr) shared = map_to_read(file);
  return shared == nullptr ? std::vector<DeviceUser>() : users_of(file, *shared, physical_device);
}

std::size_t SharedMemory::take_slot(const std::string& path) {
  for (std::size_t slot = 0; slot < SharedMemoryFile::kSlots; ++slot) {
    if (!lock_byte(SharedMemoryFile::kFirstSlotByte + static_cast<std::int64_t>(slot), F_SETLK, F_WRLCK)) continue;
    shared_->slots[slot] = {};
    shared_->used_slots = std::max<std::uint64_t>(shared_->used_slots, slot + 1);
    return slot;
  }
  throw InvalidArgument(formatted("CACHALOT_SIM: option shared: '{}' has no room for more than {} processes at a time",
                                  path, SharedMemoryFile::kSlots));
}

void SharedMemory::forget_dead() {
  for (std::size_t slot = 0; slot < shared_->used_slots; ++slot) {
    if (!is_alive(slot)) shared_->slots[slot] = {};
  }
}

std::size_t SharedMemory::sum(std::size_t device) const {
  std::size_t total = 0;
  for (std::size_t slot = 0; slot < shared_->used_slots; ++slot) total += shared_->slots[slot].used_bytes[device];
  return total;
}

// The dead are looked for only where they would make a difference: no memory is left, or there is a new peak.
bool SharedMemory::take(std::size_t device, std::size_t bytes, std::size_t memory_bytes) {
  const Locked locked(*this);
  std::uint64_t& peak = shared_->peak_bytes[device];
  if (sum(device) + bytes > std::min<std::size_t>(memory_bytes, peak)) forget_dead();
  const std::size_t total = sum(device) + bytes;
  if (total > memory_bytes) return false;
  shared_->slots[own_slot_].used_bytes[device] += bytes;
  peak = std::max<std::uint64_t>(peak, total);
  return true;
}

void SharedMemory::give_back(std::size_t device, std::size_t bytes) {
  const Locked locked(*this);
  shared_->slots[own_slot_].used_bytes[device] -= bytes;
}

std::size_t SharedMemory::used_bytes(std::size_t device) {
  const Locked locked(*this);
  forget_dead();
  return sum(device);
}

}  // namespace cachalot::simulator
