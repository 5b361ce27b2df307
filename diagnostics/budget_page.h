// The page of a budget (cachalot/gpu_budget.h): a file of 4,096 bytes with a header and 31 entries. Numbers are of the machine's byte
// order. docs/reference/statistics_page.md has a table of it.
//
// Pages are read and written by system calls and not through a mapping, as statistics pages are: a truncated file ends no program.
// Locks of open file descriptions (F_OFD_SETLK) hold over namespaces of process ids, and go with the last descriptor of their opening:
//
// * the lock of an entry's bytes, which its member holds for as long as it is one. Without it the entry is free, whatever it says;
// * the lock of the header's bytes, which is held while the header or the settings of an entry are read or change. The figures of
//   an entry are written by its member alone, without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process.h"
#include "cachalot/errors.h"
#include "cachalot/version.h"

CACHALOT_BEGIN

inline constexpr char kBudgetMagic[8] = {'c', 'a', 'c', 'h', 'a', 'b', 'u', 'd'};
inline constexpr std::uint32_t kBudgetVersion = 1;
inline constexpr std::size_t kBudgetEntries = 31;

struct BudgetHeader {
  char magic[8];                 // kBudgetMagic
  std::uint32_t layout_version;  // kBudgetVersion
  std::uint32_t page_bytes;      // 4096
  std::uint32_t header_bytes;    // 128
  std::uint32_t entry_bytes;     // 128
  std::uint32_t entry_count;     // kBudgetEntries
  std::uint32_t generation;  // changes with the total, with the settings of an entry, and when a member joins or leaves
  std::uint64_t total_bytes;  // the memory that is divided; 0 until it is known
  unsigned char uuid[16];     // of the GPU; zeros if it is unknown
  char gpu[64];               // name of the GPU, cut
  std::uint64_t reserved;     // 0
};

struct BudgetEntry {
  // Settings.
  std::uint64_t is_used;        // 1 for a member's
  std::uint64_t process_id;     // in the member's own namespace
  std::uint64_t process_start;  // clock ticks from boot: field 22 of /proc/PID/stat
  double share;
  std::uint64_t floor_bytes;
  char name[40];
  // Figures.
  std::uint64_t held_bytes;
  std::uint64_t live_bytes;
  std::uint64_t given_back_bytes;
  std::int64_t written_ns;
  std::int64_t cpu_ns;
  std::uint64_t reserved;  // 0
};
inline constexpr std::size_t kBudgetFigures = offsetof(BudgetEntry, held_bytes);

struct BudgetContent {
  BudgetHeader header;
  BudgetEntry entries[kBudgetEntries];
};
static_assert(sizeof(BudgetHeader) == 128 && sizeof(BudgetEntry) == 128 && sizeof(BudgetContent) == 4096);

// The content of a page at one moment, in which entries without a member are unused.
//
// The functions that check throw InvalidArgument, which names the value and the rule.
struct BudgetTable {
  BudgetContent content{};

  // The parts of the total, one for each entry; 0 for unused ones.
  std::vector<std::size_t> parts() const;
  // Returns the sum of the floors of all members but one.
  std::size_t floors_beside(std::size_t index) const;
  void require_share(double share) const;
  void require_floor(std::size_t bytes, std::size_t index) const;
  void require_total(std::size_t bytes) const;
  // Returns the member's entry by its name or its process id.
  std::size_t find(const std::string& member) const;
  // Throw where a page has values that no member would have written: in its layout, and in its total and the entries of members.
  void require_layout() const;
  void require_sound() const;
};

// Thrown where another process keeps the lock of the header for a second: it was stopped by a signal, perhaps.
class BudgetIsLocked : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// An open page, which is closed in a forked child. Not thread-safe. Throws InvalidArgument, which names the path and the reason,
// and BudgetIsLocked.
class BudgetPage final : private ForkAware {
 public:
  enum class Missing : bool { is_refused, is_made };

  // Opens the page of this user. The path may not be a link.
  BudgetPage(std::string path, Missing missing);
  ~BudgetPage() { close_file(); }
  BudgetPage(const BudgetPage&) = delete;
  BudgetPage& operator=(const BudgetPage&) = delete;

  const std::string& path() const { return path_; }
  // Returns the generation; nullopt if the page cannot be read, or its path does not lead to it.
  std::optional<std::uint32_t> generation() const;
  // Returns the page with its members. Blocks: up to a second while another process changes it.
  BudgetTable read() const;

  // Calls change(table), and if that does not throw writes what it has changed, in a new generation, which is in the table then.
  // Blocks as read.
  template <typename Change>
  BudgetTable update(Change&& change) {
    const Turn turn(*this, /*changes=*/true);
    BudgetContent before;
    BudgetTable table = living(&before);
    change(table);
    write_changed(before, table.content);
    return table;
  }
  // Within `change`: makes an unused entry this page's own, and returns its index; nullopt without one.
  std::optional<std::size_t> take_entry(const BudgetTable& table);
  // Within `change`, or of the page's own entry.
  void write_figures(std::size_t index, const BudgetEntry& entry) const;

 private:
  // The lock of the header, to read it or to change it.
  class Turn {
   public:
    Turn(const BudgetPage& page, bool changes);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const BudgetPage& page_;
  };

  // The locks stay the parent's.
  void on_fork() noexcept override { close_file(); }
  void close_file() noexcept;
  void open_file(Missing missing);
  void require_file() const;
  // Returns the sound page with its members, and in `raw`, if it is not null, the page as it is.
  BudgetTable living(BudgetContent* raw) const;
  void write_changed(const BudgetContent& before, BudgetContent& after) const;
  void write(const void* bytes, std::size_t count, std::size_t offset) const;
  bool is_locked_by_another(std::size_t index) const;

  const std::string path_;
  int descriptor_ = -1;
  std::optional<std::size_t> own_;  // the entry whose lock this opening has
};

CACHALOT_END
