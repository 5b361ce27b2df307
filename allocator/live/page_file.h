// The file of a statistics page, as the process that publishes it sees it.
//
// It is written by system calls and not through a mapping: where somebody truncates the file, or the memory behind it runs out,
// a call fails, and the program does not die of SIGBUS.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cachalot/statistics_page.h"

CACHALOT_BEGIN

class PageFile {
 public:
  // Makes the file, with a name that no other has and room for `devices` devices, and removes it at the end of the process.
  // Throws InvalidArgument, which names the folder and the reason.
  PageFile(const std::string& directory, std::size_t devices);
  // Removes it.
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  const std::string& path() const { return path_; }
  // Returns how often readers have read so far; the last number again if that cannot be read.
  std::uint64_t interest();
  // Writes the figures of the header behind `interest`, and the devices, under the sequence lock.
  void write(const StatisticsPageHeader& figures, const std::vector<StatisticsPageDevice>& devices);
  // In a forked child: the file is the parent's, and stays.
  void leave() noexcept;

 private:
  void create(const std::string& directory);
  void put(const void* bytes, std::size_t count, std::size_t offset) const;

  std::string path_;
  int descriptor_ = -1;
  StatisticsPageHeader header_{};
  std::uint64_t interest_ = 0;
};

CACHALOT_END
