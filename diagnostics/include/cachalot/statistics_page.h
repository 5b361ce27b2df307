/// @file
/// The layout of the statistics page, by which other processes see the memory of this one.
///
/// A page is a file in shared memory, `cachalot.<process id>.<number>` in /dev/shm or in the folder
/// that CACHALOT_PUBLISH_DIR names. StatisticsPublisher writes it; `cachalot top` reads it. It
/// consists of one StatisticsPageHeader and behind it of `device_count` StatisticsPageDevices, each
/// `device_bytes` long. Numbers have the byte order of the machine, sizes are in bytes, and texts
/// end with a zero and need not be UTF-8.
///
/// A reader sees no torn values if it keeps to the sequence lock: read `sequence`; if it is odd,
/// try again; read the figures; read `sequence` again; if it differs, try again. Everything in
/// front of `interest` does not change. A reader does not trust a page: it checks that the magic,
/// the version and the sizes are those of this header and that the file has `page_bytes` bytes.
///
/// docs/reference/statistics_page.md has a table of all members and a reader in Python.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>

CACHALOT_BEGIN_API

/// The first 8 bytes of every page.
inline constexpr char kStatisticsPageMagic[8] = {'c', 'a', 'c', 'h', 'a', 'l', 'o', 't'};
/// The version of this layout. Another layout has another number.
inline constexpr std::uint32_t kStatisticsPageVersion = 1;
/// Devices that one page has room for.
inline constexpr std::size_t kStatisticsPageDevices = 64;
/// Pools of one device that a page has room for; the largest ones are listed.
inline constexpr std::size_t kStatisticsPagePools = 64;
/// Stands for no limit in StatisticsPageDevice.
inline constexpr std::uint64_t kStatisticsPageNoLimit = ~std::uint64_t{0};

/// A StatisticsPageHeader is the begin of a page.
struct StatisticsPageHeader {
  char magic[8];                 ///< kStatisticsPageMagic
  std::uint32_t layout_version;  ///< kStatisticsPageVersion
  std::uint32_t header_bytes;    ///< sizeof(StatisticsPageHeader)
  std::uint32_t device_bytes;    ///< sizeof(StatisticsPageDevice)
  std::uint32_t device_count;    ///< number of devices behind the header
  std::uint64_t page_bytes;      ///< size of the whole page
  std::uint64_t process_id;      ///< in the process's own namespace of process ids
  std::uint64_t process_start;   ///< clock ticks from boot: field 22 of /proc/PID/stat
  std::uint64_t pid_namespace;   ///< inode of /proc/self/ns/pid; 0 if it is unknown
  std::int64_t published_ns;     ///< when publishing began, in nanoseconds of Unix time
  char library_version[16];      ///< version of the library: "0.1.0"
  char command[256];             ///< command line of the process, cut, words separated by spaces

  /// Readers add 1 whenever they have read the page. While it changes, the page is refreshed ten
  /// times as often. Readers write no other member.
  std::uint64_t interest;
  std::uint64_t sequence;      ///< odd while the figures are written
  std::int64_t refreshed_ns;   ///< when the figures were taken, in nanoseconds of Unix time
  std::int64_t elapsed_ns;     ///< the same on a clock that does not jump, since publishing began
  std::uint64_t refreshes;     ///< the number of times that the figures were taken
  std::int64_t cpu_ns;         ///< processor time of the thread that takes them, so far
  std::uint64_t reserved[16];  ///< 0
};

/// A StatisticsPagePool has the memory of one pool.
struct StatisticsPagePool {
  std::uint64_t id[2];               ///< PoolId; {0, 0} is the default pool
  std::uint64_t is_asleep;           ///< 1 between release_physical and restore_physical
  std::uint64_t reserved_bytes;      ///< as in PoolUsage
  std::uint64_t used_bytes;          ///< as PoolUsage::used_bytes()
  std::uint64_t free_bytes;          ///< as in PoolUsage
  std::uint64_t free_blocks;         ///< as in PoolUsage
  std::uint64_t largest_free_bytes;  ///< as in PoolUsage
  std::uint64_t asleep_bytes;        ///< as in PoolUsage
  char tag[56];                      ///< name of the tag, cut; "" for other pools
};

/// A StatisticsPageDevice has the memory of one device. Sums and peaks start again where the
/// program resets them (reset_peak_stats, reset_accumulated_stats).
struct StatisticsPageDevice {
  std::int32_t index;                  ///< the process's number of the device
  std::uint32_t pool_count;            ///< the number of pools
  std::uint32_t listed_pools;          ///< of those, in `pools`
  std::uint32_t has_uuid;              ///< 1 if `uuid` is known
  unsigned char uuid[16];              ///< of the GPU or MIG instance
  char name[64];                       ///< as in "NVIDIA H100 80GB HBM3"
  std::uint64_t total_bytes;           ///< memory of the device
  std::uint64_t limit_bytes;           ///< the lowest limit, or kStatisticsPageNoLimit
  std::uint64_t soft_limit_bytes;      ///< the soft limit, or kStatisticsPageNoLimit
  std::uint64_t reserved_bytes;        ///< held from the device
  std::uint64_t allocated_bytes;       ///< of allocated blocks
  std::uint64_t requested_bytes;       ///< asked for
  std::uint64_t active_bytes;          ///< of blocks that are allocated or wait for other streams
  std::uint64_t peak_reserved_bytes;   ///< the largest reserved_bytes
  std::uint64_t peak_allocated_bytes;  ///< the largest allocated_bytes
  std::uint64_t peak_requested_bytes;  ///< the largest requested_bytes
  std::uint64_t peak_active_bytes;     ///< the largest active_bytes
  std::uint64_t free_bytes;            ///< cached in free blocks of pools that are awake
  std::uint64_t free_blocks;           ///< number of those blocks
  std::uint64_t largest_free_bytes;    ///< of the largest of those blocks
  std::uint64_t asleep_bytes;          ///< given back until restore_physical
  std::uint64_t blocks;                ///< allocated blocks
  std::uint64_t segments;              ///< segments held from the device; 0 over heap:pages
  std::uint64_t allocations;           ///< allocations so far
  std::uint64_t frees;                 ///< frees so far
  std::uint64_t allocated_sum_bytes;   ///< bytes of blocks allocated so far
  std::uint64_t freed_sum_bytes;       ///< bytes of blocks freed so far
  std::uint64_t device_allocations;    ///< driver calls that got memory
  std::uint64_t device_frees;          ///< driver calls that gave memory back
  std::uint64_t retries;               ///< times the device was asked again
  std::uint64_t ooms;                  ///< requests that failed for want of memory
  std::uint64_t oom_rejections;        ///< requests that throw_on_cudamalloc_oom refused
  std::uint64_t stream_waits;          ///< times that all pending events were waited for
  std::uint64_t reserved[5];           ///< 0
  StatisticsPagePool pools[kStatisticsPagePools];  ///< the largest pools, the default pool first
};

static_assert(sizeof(StatisticsPageHeader) == 512, "the layout has no version of its own for this");
static_assert(sizeof(StatisticsPagePool) == 128, "the layout has no version of its own for this");
static_assert(sizeof(StatisticsPageDevice) ==
                  352 + sizeof(StatisticsPagePool) * kStatisticsPagePools,
              "the layout has no version of its own for this");

CACHALOT_END_API
