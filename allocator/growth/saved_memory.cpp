#include "growth/saved_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"

CACHALOT_BEGIN

// --- files --------------------------------------------------------------------------------------------------------------

void SavedFile::require_folder(const std::string& folder, const char* call) {
  struct stat found {};
  int error = stat(folder.c_str(), &found) == 0 ? 0 : errno;
  if (error == 0 && !S_ISDIR(found.st_mode)) error = ENOTDIR;
  if (error == 0 && access(folder.c_str(), W_OK | X_OK) != 0) error = errno;
  CACHALOT_REQUIRE(error == 0, "{}: folder is '{}' ({}); it must be a folder in which this process may make files",
                   call, folder, std::strerror(error));
}

std::size_t SavedFile::free_bytes(const std::string& folder) {
  struct statvfs disk {};
  const int error = statvfs(folder.c_str(), &disk) == 0 ? 0 : errno;
  CACHALOT_REQUIRE(error == 0, "the free room of folder '{}' is unknown: {}", folder, std::strerror(error));
  return static_cast<std::size_t>(disk.f_bavail) * disk.f_frsize;
}

namespace {

// Returns 0 or the error that kept the file from having `bytes`.
int take_room(int file, std::size_t bytes) {
  int error = 0;
  do error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  while (error == EINTR);
  return error;
}

}  // namespace

std::shared_ptr<SavedFile> SavedFile::make(const std::string& folder, std::size_t bytes) {
  std::string path = folder + "/cachalot-sleep-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  CACHALOT_REQUIRE(file >= 0, "no file to save to can be made in folder '{}': {}", folder, std::strerror(errno));
  unlink(path.c_str());
  int error = take_room(file, bytes);
  void* data = MAP_FAILED;
  if (error == 0) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) error = errno;
  }
  close(file);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return nullptr;
  CACHALOT_REQUIRE(error == 0, "{} bytes cannot be saved to a file in folder '{}': {}", bytes, folder,
                   std::strerror(error));
  return std::make_shared<SavedFile>(static_cast<char*>(data), bytes);
}

SavedFile::~SavedFile() { munmap(data_, bytes_); }

// --- the content of pools -----------------------------------------------------------------------------------------------

// No other thread uses it any more.
SavedMemory::~SavedMemory() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  for (const SavedBytes& spare : spare_) {
    if (spare.file != nullptr) continue;
    try {
      state_.device->host_free(spare.host);
    } catch (const CudaError&) {  // the device may be gone at exit; the error cannot be reported
    }
  }
}

const SavedMemory::OfPool& SavedMemory::of(const PrivatePool& pool, const Held& /*held*/) const {
  static const OfPool none;
  const auto found = saved_.find(pool.id);
  return found == saved_.end() ? none : found->second;
}

void SavedMemory::keep(const PrivatePool& pool, HandleId id, SavedBytes bytes, const Held& /*held*/) {
  saved_[pool.id][id] = std::move(bytes);
}

void SavedMemory::forget(const PrivatePool& pool, HandleId id, const Held& /*held*/) {
  const auto handles = saved_.find(pool.id);
  if (handles == saved_.end()) return;
  const auto saved = handles->second.find(id);
  if (saved == handles->second.end()) return;
  spare_.push_back(std::move(saved->second));
  handles->second.erase(saved);
}

void SavedMemory::forget_all(const PrivatePool& pool, const Held& /*held*/) {
  auto handles = saved_.extract(pool.id);
  if (handles.empty()) return;
  for (auto& entry : handles.mapped()) spare_.push_back(std::move(entry.second));
}

void SavedMemory::free(Held& held) {
  for (SavedBytes& spare : std::exchange(spare_, {})) {
    try {
      const Unlocked unlocked(held);
      if (std::exchange(spare.file, nullptr) == nullptr) state_.device->host_free(spare.host);
    } catch (const CudaError&) {
      spare_.push_back(std::move(spare));
    }
  }
}

CACHALOT_END
