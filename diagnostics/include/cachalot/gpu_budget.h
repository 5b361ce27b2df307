/// @file
/// The budget of a GPU between the processes that use it.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// BudgetOptions say which budget an allocator joins, and with what.
struct BudgetOptions {
  /// The file of the budget, which is made if it is not there. Empty: default_budget_path.
  std::string path;
  /// The name that cachalot budget shows, of at most 39 bytes. Empty: that of the program. Several
  /// members may have one name.
  std::string name;
  double share = 1;             ///< of what the floors leave, beside the shares of the others
  std::size_t floor_bytes = 0;  ///< the least that the member's part has
  /// The bytes that are to stay free on the device, for programs outside of the budget: while less
  /// is free, this member gives memory back.
  std::size_t keep_free_bytes = 0;
  /// Writes a line to standard error when memory begins to be given back: one for an episode, which
  /// ends when none was given back for 10 s.
  bool tells = false;
};

/// A BudgetMember is an allocator that has joined a budget.
struct BudgetMember {
  std::string name;                  ///< BudgetOptions::name
  std::uint64_t process_id = 0;      ///< in the process's own namespace of process ids
  double share = 0;                  ///< as it is now
  std::size_t floor_bytes = 0;       ///< as it is now
  std::size_t part_bytes = 0;        ///< beyond it, the member gives cached memory back
  std::size_t held_bytes = 0;        ///< allocated and cached; at most 0.2 s old
  std::size_t live_bytes = 0;        ///< allocated
  std::size_t given_back_bytes = 0;  ///< memory given back for the budget, in all
  std::int64_t written_ns = 0;       ///< when the figures last changed, nanoseconds of Unix time
  std::int64_t cpu_ns = 0;           ///< processor time of its thread until then
};

/// BudgetFigures are the total of a budget and its living members.
struct BudgetFigures {
  std::string path;                   ///< its file
  std::string gpu;                    ///< name of the GPU; "" before a member has joined
  std::string uuid;                   ///< of the GPU, without nvidia-smi's "GPU-"; "" if unknown
  std::size_t total_bytes = 0;        ///< the memory that is divided
  std::vector<BudgetMember> members;  ///< in the order of the file
};

/// A GpuBudget is an allocator's membership in a budget, by which processes divide a GPU's memory.
///
///     cachalot::BudgetOptions options;
///     options.share = 2;
///     cachalot::GpuBudget budget(allocator, 0, options);
///
/// A member's part is its floor, and of the total less all floors what its share is of all shares.
/// A member that holds more than its part gives memory back by AllocatorSleep::give_way: cached
/// memory, and then evictable tags. Other allocated memory is never touched, and no request is
/// refused. It does so within about 0.2 s after it came to hold more, and after another member
/// joined or left or set_budget changed a share. After another process was killed, its part grows
/// within about 1.2 s.
///
/// Malloc and free do nothing for it: a thread looks five times a second, and calls the driver only
/// to give memory back, and with keep_free_bytes for the free memory.
///
/// The budget is a file of one page, of mode 0600, for the processes of one user;
/// docs/reference/statistics_page.md has its layout. Members may be in different containers that
/// share the folder of the file: each holds a lock of the file, which ends with its process.
/// A page that is removed or damaged binds no member. They join again, with their settings, as soon
/// as the path leads to a sound page or to no file; then they make one. The allocator must outlive
/// the membership.
///
/// In a forked child the membership stays that of the parent, and each method does nothing.
///
/// Thread safety: every method may be called from any thread.
class GpuBudget {
 public:
  /// Joins the budget, and makes its file if there is none.
  /// Throws InvalidArgument, and changes nothing, for a share outside of 0.001 to 1,000,000, for a
  /// floor that exceeds what the other floors leave of the total, for a name that is too long, is a
  /// number or has control characters, if 31 members are there already, if the budget is another
  /// GPU's, and for a file that is not a budget of this user: another owner, a link, another size
  /// or version. The message names the value and the rule.
  explicit GpuBudget(CachingAllocator& allocator, int device = 0,
                     const BudgetOptions& options = {});
  /// Leaves the budget; the file stays.
  ~GpuBudget();
  GpuBudget(const GpuBudget&) = delete;
  GpuBudget& operator=(const GpuBudget&) = delete;

  /// Returns the path of the budget's file.
  const std::string& path() const;
  /// Returns the bytes of this member's part; SIZE_MAX while the page is removed or damaged.
  std::size_t part_bytes() const;
  /// Gives back at least `bytes` bytes, as far as possible, by AllocatorSleep::give_way.
  /// Returns the bytes given back. Throws CudaError. Does nothing in a forked child.
  std::size_t give_back(std::size_t bytes);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Returns where the budget of the device lies by default: in the folder that CACHALOT_PUBLISH_DIR
/// names, or /dev/shm, `cachalot.budget.UID.UUID` with the user's number and the GPU's UUID.
std::string default_budget_path(const Device& device);
/// Returns the paths of the budgets that lie where those of this user lie by default.
std::vector<std::string> default_budget_paths();
/// Returns the total and the living members.
/// Throws InvalidArgument if there is no budget of this user at the path, with the reason.
BudgetFigures read_budget(const std::string& path);
/// Changes the share, the floor or both of a living member, by its name or by its process id.
/// Throws InvalidArgument, and changes nothing, for values that GpuBudget refuses, for a name that
/// no member or several have, and as read_budget.
void set_budget(const std::string& path, const std::string& member, std::optional<double> share,
                std::optional<std::size_t> floor_bytes);
/// Changes the bytes that are divided. Makes the file if there is none.
/// Throws InvalidArgument, and changes nothing, for less than the sum of the floors, for 0, for
/// 1 EiB or more, and as read_budget.
void set_budget_total(const std::string& path, std::size_t total_bytes);
/// Returns the figures as JSON: an object with the names of the members of BudgetFigures.
std::string to_json(const BudgetFigures& figures);

CACHALOT_END_API
