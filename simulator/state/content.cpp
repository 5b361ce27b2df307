#include "simulator/state/content.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>

#include "base/bytes.h"
#include "device/cuda_codes.h"
#include "simulator/device/address_space.h"

namespace cachalot::simulator {

// The run that contains `first`, or else the next one.
KnownContent::Runs::const_iterator KnownContent::run_at_or_after(std::uint64_t first) const {
  auto run = runs_.upper_bound(first);
  if (run != runs_.begin() && std::prev(run)->second.end > first) --run;
  return run;
}

void KnownContent::put(std::uint64_t first, std::size_t bytes, Run content) {
  if (bytes == 0) return;
  carve(first, first + bytes);
  content.end = first + bytes;
  const auto run = runs_.emplace(first, content).first;
  merge_with_next(run);
  if (run != runs_.begin()) merge_with_next(std::prev(run));
}

bool KnownContent::is_known(std::uint64_t first, std::size_t bytes) const {
  const std::uint64_t end = first + bytes;
  for (auto run = run_at_or_after(first); first < end; ++run) {
    if (run == runs_.end() || run->first > first || run->second.kind != Kind::known) return false;
    first = run->second.end;
  }
  return true;
}

bool KnownContent::is_unknown(std::uint64_t first, std::size_t bytes) const {
  const auto run = run_at_or_after(first);
  return run == runs_.end() || run->first >= first + bytes;
}

unsigned KnownContent::kinds_in(std::uint64_t first, std::size_t bytes) const {
  const std::uint64_t end = first + bytes;
  unsigned found = 0;
  for (auto run = run_at_or_after(first); first < end; ++run) {
    if (run == runs_.end() || run->first > first) found |= 1U << static_cast<unsigned>(Kind::unknown);
    if (run == runs_.end() || run->first >= end) break;
    found |= 1U << static_cast<unsigned>(run->second.kind);
    first = run->second.end;
  }
  return found;
}

void KnownContent::kinds(std::uint64_t first, std::size_t bytes, Kind* kinds) const {
  std::fill_n(kinds, bytes, Kind::unknown);
  const std::uint64_t end = first + bytes;
  for (auto run = run_at_or_after(first); run != runs_.end() && run->first < end; ++run) {
    const std::uint64_t from = std::max(run->first, first);
    std::fill(kinds + (from - first), kinds + (std::min(run->second.end, end) - first), run->second.kind);
  }
}

void KnownContent::carve(std::uint64_t first, std::uint64_t end) {
  auto run = runs_.lower_bound(first);
  if (run != runs_.begin()) {
    const auto before = std::prev(run);
    const Run old = before->second;
    if (old.end > first) before->second.end = first;
    if (old.end > end) runs_.emplace(end, old);
  }
  while (run != runs_.end() && run->first < end) {
    if (run->second.end > end) runs_.emplace(end, run->second);
    run = runs_.erase(run);
  }
}

void KnownContent::merge_with_next(Runs::iterator run) {
  const auto next = std::next(run);
  if (next == runs_.end() || next->first != run->second.end) return;
  if (next->second.kind != run->second.kind || next->second.byte != run->second.byte) return;
  run->second.end = next->second.end;
  runs_.erase(next);
}

namespace {

constexpr std::size_t kBufferBytes = 64 * kKiB;

// Calls `transfer(done)`, which is pread or pwrite of the rest, until all is done. A read past the file's end is zeros.
template <typename Transfer>
std::size_t transfer_all(std::size_t bytes, Transfer&& transfer) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t part = transfer(done);
    if (part == 0) return done;
    if (part < 0 && errno == EINTR) continue;
    if (part < 0 && errno == EFAULT) fail("cudaMemcpy", CudaCode::invalid_value, "not accessible host memory");
    if (part < 0) fail("cudaMemcpy", CudaCode::unknown, std::string("device memory's file: ") + std::strerror(errno));
    done += static_cast<std::size_t>(part);
  }
  return done;
}

int open_file_of(const ContentStore::Window& window) {
  const std::string path = "/proc/" + std::to_string(window.process) + "/fd/" + std::to_string(window.file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace

int ContentStore::file() {
  if (file_ < 0) file_ = memfd_create("cachalot simulated device memory", MFD_CLOEXEC);
  if (file_ < 0) fail("cudaMemcpy", CudaCode::unknown, std::string("memfd_create: ") + std::strerror(errno));
  return file_;
}

std::map<std::uint64_t, ContentStore::Attached>::const_iterator ContentStore::attached_at(const Place& place) const {
  const std::uint64_t offset = offset_of(place);
  const auto after = attached_.upper_bound(offset);
  if (after == attached_.begin()) return attached_.end();
  const auto found = std::prev(after);
  return offset - found->first < found->second.bytes ? found : attached_.end();
}

ContentStore::Spot ContentStore::spot(const Place& place) {
  const std::uint64_t offset = offset_of(place);
  const auto found = attached_at(place);
  if (found == attached_.end()) return {file(), offset};
  const auto& [first, attached] = *found;
  return {attached.file, attached.offset + (offset - first)};
}

bool ContentStore::is_known(const Place& first, std::size_t bytes) const {
  return known_.is_known(offset_of(first), bytes) || attached_at(first) != attached_.end();
}

unsigned ContentStore::kinds_in(const Place& first, std::size_t bytes) const {
  if (attached_at(first) != attached_.end()) return 1U << static_cast<unsigned>(KnownContent::Kind::known);
  return known_.kinds_in(offset_of(first), bytes);
}

void ContentStore::kinds(const Place& first, std::size_t bytes, KnownContent::Kind* kinds) const {
  if (attached_at(first) != attached_.end())
    std::fill_n(kinds, bytes, KnownContent::Kind::known);
  else
    known_.kinds(offset_of(first), bytes, kinds);
}

void ContentStore::make_unknown(const Place& first, std::size_t bytes) {
  if (attached_at(first) != attached_.end()) return;  // another process's memory counts as known
  const std::uint64_t offset = offset_of(first);
  if (known_.is_unknown(offset, bytes)) return;
  const std::vector<char> zeros(kBufferBytes);
  known_.for_each_part(offset, bytes, [&](std::uint64_t from, std::size_t part, KnownContent::Kind, int byte) {
    if (byte != KnownContent::kNoByte) return;
    transfer_all(part, [&](std::size_t done) {
      return pwrite(file(), zeros.data(), std::min(part - done, zeros.size()), static_cast<off_t>(from + done));
    });
  });
  known_.forget(offset, bytes);
}

void ContentStore::guess(const Place& first, std::size_t bytes, unsigned char byte) {
  if (attached_at(first) != attached_.end()) return;
  make_unknown(first, bytes);
  known_.note_uniform(offset_of(first), bytes, byte);
}

void ContentStore::note_written(const Place& first, std::size_t bytes) {
  written_ = true;
  const auto device = static_cast<std::size_t>(first.device);
  if (touched_.size() <= device) touched_.resize(device + 1);
  std::vector<bool>& touched = touched_[device];
  const std::size_t last_unit = (first.physical + bytes - 1) / kPhysicalUnit;
  if (touched.size() <= last_unit) touched.resize(std::max(last_unit + 1, touched.size() * 2));
  for (std::size_t unit = first.physical / kPhysicalUnit; unit <= last_unit; ++unit) touched[unit] = true;
}

void ContentStore::write(const Place& to, const void* from, std::size_t bytes, KnownContent::Kind kind) {
  if (bytes == 0) return;
  const Spot at = spot(to);
  note_written(to, bytes);  // before it is: a transfer that fails may have written a part
  transfer_all(bytes, [&](std::size_t done) {
    return pwrite(at.file, static_cast<const char*>(from) + done, bytes - done, static_cast<off_t>(at.offset + done));
  });
  if (attached_at(to) == attached_.end()) known_.note(offset_of(to), bytes, kind);
}

void ContentStore::read(void* to, const Place& from, std::size_t bytes) {
  if (bytes == 0) return;
  const Spot at = spot(from);
  const std::size_t done = transfer_all(bytes, [&](std::size_t so_far) {
    return pread(at.file, static_cast<char*>(to) + so_far, bytes - so_far, static_cast<off_t>(at.offset + so_far));
  });
  if (done < bytes) std::memset(static_cast<char*>(to) + done, 0, bytes - done);
  known_.for_each_part(offset_of(from), bytes,
                       [&](std::uint64_t first, std::size_t part, KnownContent::Kind, int byte) {
                         if (byte != KnownContent::kNoByte)
                           std::memset(static_cast<char*>(to) + (first - offset_of(from)), byte, part);
                       });
}

void ContentStore::fill(const Place& to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes) {
  std::array<char, kBufferBytes> buffer;
  const std::size_t used = std::min(bytes, buffer.size());
  for (std::size_t at = 0; at < used; at += pattern_bytes) {
    std::memcpy(buffer.data() + at, &pattern, std::min(pattern_bytes, used - at));
  }
  for (std::size_t done = 0; done < bytes; done += used) {
    write({to.device, to.physical + done}, buffer.data(), std::min(used, bytes - done));
  }
}

void ContentStore::forget(const Place& first, std::size_t bytes) {
  if (!attached_.empty()) {
    if (const auto at = attached_.find(offset_of(first)); at != attached_.end()) {
      detach(at->second);
      attached_.erase(at);
      return;
    }
  }
  known_.forget(offset_of(first), bytes);
  const auto device = static_cast<std::size_t>(first.device);
  if (!written_ || touched_.size() <= device) return;
  std::vector<bool>& touched = touched_[device];
  const std::size_t end_unit = std::min((first.physical + bytes) / kPhysicalUnit, touched.size());
  for (std::size_t unit = first.physical / kPhysicalUnit; unit < end_unit; ++unit) {
    if (!touched[unit]) continue;
    touched[unit] = false;
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset_of({first.device, unit * kPhysicalUnit})), static_cast<off_t>(kPhysicalUnit));
  }
}

ContentStore::Window ContentStore::window(const Place& first) {
  note_written(first, 1);
  return {getpid(), file(), offset_of(first)};
}

int ContentStore::descriptor_with(const void* note, std::size_t bytes) {
  const std::string path = "/proc/self/fd/" + std::to_string(file());
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);  // a dup would have the same position
  const auto at = static_cast<off_t>(next_note_);
  if (descriptor < 0) return -1;
  if (pwrite(descriptor, note, bytes, at) == static_cast<ssize_t>(bytes) && lseek(descriptor, at, SEEK_SET) == at) {
    next_note_ += bytes;
    return descriptor;
  }
  close(descriptor);
  return -1;
}

bool ContentStore::attach(const Place& first, std::size_t bytes, const Window& window, int descriptor) {
  if (attached_.contains(offset_of(first))) return true;  // the same import, opened again
  ForeignFile& foreign = foreign_files_[{window.process, window.file}];
  if (foreign.windows == 0) {
    foreign.file = descriptor >= 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, 0) : open_file_of(window);
  }
  if (foreign.file < 0) {
    foreign_files_.erase({window.process, window.file});
    return false;
  }
  ++foreign.windows;
  attached_[offset_of(first)] = {bytes, foreign.file, window.offset, {window.process, window.file}};
  return true;
}

void ContentStore::detach(const Attached& attached) {
  const auto foreign = foreign_files_.find(attached.exporter);
  if (--foreign->second.windows > 0) return;
  close(foreign->second.file);
  foreign_files_.erase(foreign);
}

}  // namespace cachalot::simulator
