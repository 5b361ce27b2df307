#include "diagnostics/budget_page.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/suggestions.h"

CACHALOT_BEGIN

namespace {

constexpr double kLeastShare = 0.001;
constexpr double kMostShare = 1'000'000;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;  // as of a request

constexpr auto kMostWait = std::chrono::seconds(1);  // for the lock of the header, which is held for microseconds
constexpr auto kPauseOfAWait = std::chrono::microseconds(200);

bool is_number(std::string_view text) { return text.find_first_not_of("0123456789") == std::string_view::npos; }

bool is_share(double share) { return share >= kLeastShare && share <= kMostShare; }  // false for NaN

std::string_view name_of(const BudgetEntry& entry) { return {entry.name, strnlen(entry.name, sizeof(entry.name))}; }

template <typename Value>
std::string_view bytes_of(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

off_t offset_of(std::size_t index) { return static_cast<off_t>(sizeof(BudgetHeader) + index * sizeof(BudgetEntry)); }

BudgetHeader new_header() {
  BudgetHeader header{};
  std::ranges::copy(kBudgetMagic, header.magic);
  header.layout_version = kBudgetVersion;
  header.page_bytes = sizeof(BudgetContent);
  header.header_bytes = sizeof(BudgetHeader);
  header.entry_bytes = sizeof(BudgetEntry);
  header.entry_count = kBudgetEntries;
  return header;
}

}  // namespace

// --- BudgetTable ----------------------------------------------------------------------------------------------------------

std::vector<std::size_t> BudgetTable::parts() const {
  double shares = 0;
  for (const BudgetEntry& entry : content.entries) shares += entry.is_used != 0 ? entry.share : 0;
  const std::size_t floors = floors_beside(kBudgetEntries);
  const std::size_t rest = content.header.total_bytes - std::min<std::size_t>(floors, content.header.total_bytes);
  std::vector<std::size_t> parts;
  for (const BudgetEntry& entry : content.entries) {
    const double part = static_cast<double>(rest) * (entry.share / shares);
    parts.push_back(entry.is_used != 0 ? entry.floor_bytes + static_cast<std::size_t>(part) : 0);
  }
  return parts;
}

std::size_t BudgetTable::floors_beside(std::size_t index) const {
  std::size_t floors = 0;
  for (std::size_t i = 0; i < kBudgetEntries; ++i) {
    if (i != index && content.entries[i].is_used != 0) floors += content.entries[i].floor_bytes;
  }
  return floors;
}

void BudgetTable::require_share(double share) const {
  CACHALOT_REQUIRE(is_share(share), "a share of {}: it must be a number from 0.001 to 1000000", share);
}

void BudgetTable::require_floor(std::size_t bytes, std::size_t index) const {
  const std::size_t total = content.header.total_bytes;
  const std::size_t others = floors_beside(index);
  CACHALOT_REQUIRE(bytes <= total - std::min(others, total),
                   "a floor of {}: it may be at most {}, since the other floors are {} of a total of {}",
                   format_bytes(bytes), format_bytes(total - std::min(others, total)), format_bytes(others),
                   format_bytes(total));
}

void BudgetTable::require_total(std::size_t bytes) const {
  const std::size_t floors = floors_beside(kBudgetEntries);
  CACHALOT_REQUIRE(bytes > 0 && bytes < kMostBytes, "a total of {} bytes: it must be from 1 byte to less than 1 EiB",
                   bytes);
  CACHALOT_REQUIRE(bytes >= floors, "a total of {}: it must be at least {}, the sum of the floors", format_bytes(bytes),
                   format_bytes(floors));
}

std::size_t BudgetTable::find(const std::string& member) const {
  std::vector<std::size_t> found;
  std::vector<std::string_view> names;
  std::vector<std::uint64_t> processes;
  for (std::size_t i = 0; i < kBudgetEntries; ++i) {
    const BudgetEntry& entry = content.entries[i];
    if (entry.is_used == 0) continue;
    names.push_back(name_of(entry));
    if (is_number(member) ? std::to_string(entry.process_id) != member : name_of(entry) != member) continue;
    found.push_back(i);
    processes.push_back(entry.process_id);
  }
  CACHALOT_REQUIRE(found.size() < 2, "'{:.60}' is {} members, of the processes {}: name one by its process", member,
                   found.size(), join(processes, ", "));
  if (found.size() == 1) return found.front();
  const std::string question = did_you_mean(member, names);
  throw InvalidArgument(formatted("'{:.60}' is no member of the budget{}{}", member, question.empty() ? "" : "; ",
                                  question.empty() ? (names.empty() ? ", which has none" : "") : question));
}

void BudgetTable::require_layout() const {
  const BudgetHeader& header = content.header;
  CACHALOT_REQUIRE(std::ranges::equal(header.magic, kBudgetMagic), "it is no budget");
  CACHALOT_REQUIRE(header.layout_version == kBudgetVersion, "its layout has version {}, and this library knows {}",
                   header.layout_version, kBudgetVersion);
  const BudgetHeader usual = new_header();
  CACHALOT_REQUIRE(header.page_bytes == usual.page_bytes && header.header_bytes == usual.header_bytes &&
                       header.entry_bytes == usual.entry_bytes && header.entry_count == usual.entry_count,
                   "its sizes are not those of its layout");
}

void BudgetTable::require_sound() const {
  std::size_t left = content.header.total_bytes;
  CACHALOT_REQUIRE(left < kMostBytes, "it is damaged: a total of {} bytes", left);
  for (const BudgetEntry& entry : content.entries) {
    if (entry.is_used == 0) continue;
    const std::size_t index = static_cast<std::size_t>(&entry - content.entries);
    CACHALOT_REQUIRE(entry.is_used == 1 && is_share(entry.share) && entry.floor_bytes <= left,
                     "it is damaged: entry {} has the share {} and a floor of {} bytes", index, entry.share,
                     entry.floor_bytes);
    CACHALOT_REQUIRE(name_of(entry).size() < sizeof(entry.name), "it is damaged: the name of entry {} has no end",
                     index);
    left -= entry.floor_bytes;
  }
}

// --- BudgetPage -----------------------------------------------------------------------------------------------------------

// Returns false if another opening of the file has a lock there.
static bool set_lock(int descriptor, short type, off_t offset, std::size_t bytes) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset;
  lock.l_len = static_cast<off_t>(bytes);
  return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

BudgetPage::BudgetPage(std::string path, Missing missing) : path_(std::move(path)) {
  try {
    open_file(missing);
    require_file();
  } catch (...) {
    close_file();
    throw;
  }
}

// The owner is asked for before the file is opened: opening another user's would say no more than "Permission denied".
void BudgetPage::open_file(Missing missing) {
  struct stat status {};
  if (lstat(path_.c_str(), &status) == 0) {
    CACHALOT_REQUIRE(S_ISREG(status.st_mode), "the budget {:.300} is {}: it must be a regular file", path_,
                     S_ISLNK(status.st_mode) ? "a link" : "no file");
    CACHALOT_REQUIRE(status.st_uid == geteuid(), "the budget {:.300} is user {}'s: it must be this user's, {}", path_,
                     status.st_uid, geteuid());
  }
  const int make = missing == Missing::is_made ? O_CREAT : 0;
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  descriptor_ = open(path_.c_str(), kFlags | make, S_IRUSR | S_IWUSR);
  CACHALOT_REQUIRE(descriptor_ >= 0, "the budget {:.300} cannot be {}: {}", path_,
                   missing == Missing::is_made ? "made" : "opened", std::strerror(errno));
  if (missing == Missing::is_refused) return;
  const Turn turn(*this, /*changes=*/true);
  if (fstat(descriptor_, &status) != 0 || status.st_size != 0) return;
  BudgetContent empty{};
  empty.header = new_header();
  write(&empty, sizeof(empty), 0);
}

void BudgetPage::require_file() const {
  struct stat status {};
  CACHALOT_REQUIRE(fstat(descriptor_, &status) == 0, "the budget {:.300}: {}", path_, std::strerror(errno));
  CACHALOT_REQUIRE(S_ISREG(status.st_mode) && status.st_nlink == 1,
                   "the budget {:.300} has {} names: it must be a regular file with one", path_, status.st_nlink);
  CACHALOT_REQUIRE(status.st_uid == geteuid(), "the budget {:.300} is user {}'s: it must be this user's, {}", path_,
                   status.st_uid, geteuid());
  CACHALOT_REQUIRE(status.st_size == sizeof(BudgetContent), "the budget {:.300} has {} bytes: it must have {}", path_,
                   std::int64_t{status.st_size}, sizeof(BudgetContent));
  read();
}

std::optional<std::uint32_t> BudgetPage::generation() const {
  struct stat opened {};
  struct stat named {};
  std::uint32_t generation = 0;
  if (fstat(descriptor_, &opened) != 0 || lstat(path_.c_str(), &named) != 0) return std::nullopt;
  if (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) return std::nullopt;
  const ssize_t got = pread(descriptor_, &generation, sizeof(generation), offsetof(BudgetHeader, generation));
  return got == sizeof(generation) ? std::optional(generation) : std::nullopt;
}

BudgetTable BudgetPage::read() const {
  const Turn turn(*this, /*changes=*/false);
  return living(nullptr);
}

BudgetTable BudgetPage::living(BudgetContent* raw) const {
  BudgetTable table;
  const ssize_t got = pread(descriptor_, &table.content, sizeof(table.content), 0);
  CACHALOT_REQUIRE(got == sizeof(table.content), "the budget {:.300} is cut short", path_);
  if (raw != nullptr) *raw = table.content;
  try {
    table.require_layout();
    for (std::size_t i = 0; i < kBudgetEntries; ++i) {
      BudgetEntry& entry = table.content.entries[i];
      if (entry.is_used != 0 && own_ != i && !is_locked_by_another(i)) entry.is_used = 0;
    }
    table.require_sound();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        formatted("the budget {:.300}: {} (remove the file, and members make a new one)", path_, error.what()));
  }
  return table;
}

// The entries come first: a process that ends in between leaves a sound page, and members look at a page without a new generation
// once a second.
void BudgetPage::write_changed(const BudgetContent& before, BudgetContent& after) const {
  for (std::size_t i = 0; i < kBudgetEntries; ++i) {
    if (bytes_of(before.entries[i]).substr(0, kBudgetFigures) != bytes_of(after.entries[i]).substr(0, kBudgetFigures))
      write(&after.entries[i], kBudgetFigures, static_cast<std::size_t>(offset_of(i)));
  }
  if (bytes_of(before) == bytes_of(after)) return;
  ++after.header.generation;
  write(&after.header, sizeof(after.header), 0);
}

void BudgetPage::write(const void* bytes, std::size_t count, std::size_t offset) const {
  const ssize_t written = pwrite(descriptor_, bytes, count, static_cast<off_t>(offset));
  CACHALOT_REQUIRE(written == static_cast<ssize_t>(count), "the budget {:.300} cannot be written: {}", path_,
                   std::strerror(written < 0 ? errno : ENOSPC));
}

std::optional<std::size_t> BudgetPage::take_entry(const BudgetTable& table) {
  for (std::size_t i = 0; i < kBudgetEntries && !own_; ++i) {
    const bool is_free = table.content.entries[i].is_used == 0;
    if (is_free && set_lock(descriptor_, F_WRLCK, offset_of(i), sizeof(BudgetEntry))) own_ = i;
  }
  return own_;
}

void BudgetPage::write_figures(std::size_t index, const BudgetEntry& entry) const {
  write(reinterpret_cast<const char*>(&entry) + kBudgetFigures, sizeof(entry) - kBudgetFigures,
        static_cast<std::size_t>(offset_of(index)) + kBudgetFigures);
}

bool BudgetPage::is_locked_by_another(std::size_t index) const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset_of(index);
  lock.l_len = sizeof(BudgetEntry);
  return fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void BudgetPage::close_file() noexcept {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
  own_.reset();
}

// A wait without an end could be for a process that was stopped by a signal.
BudgetPage::Turn::Turn(const BudgetPage& page, bool changes) : page_(page) {
  const short type = changes ? F_WRLCK : F_RDLCK;
  const auto give_up = std::chrono::steady_clock::now() + kMostWait;
  while (!set_lock(page.descriptor_, type, 0, sizeof(BudgetHeader))) {
    const bool is_held = errno == EAGAIN || errno == EACCES;
    CACHALOT_REQUIRE(is_held, "the budget {:.300} cannot be locked: {}", page.path_, std::strerror(errno));
    if (std::chrono::steady_clock::now() > give_up) {
      throw BudgetIsLocked(
          formatted("the budget {:.300} has been locked for a second: perhaps a process that changes it was stopped",
                    page.path_));
    }
    std::this_thread::sleep_for(kPauseOfAWait);
  }
}

BudgetPage::Turn::~Turn() { set_lock(page_.descriptor_, F_UNLCK, 0, sizeof(BudgetHeader)); }

CACHALOT_END
