#include "simulator/base/elf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace cachalot::simulator {

ElfFile::ElfFile(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  struct stat status {};
  if (fstat(file, &status) == 0 && status.st_size > 0) {
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* start = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (start != MAP_FAILED) content_ = {static_cast<const char*>(start), bytes};
  }
  close(file);
  const auto head = at<Elf64_Ehdr>(0, 1);
  if (head.empty() || std::memcmp(head[0].e_ident, ELFMAG, SELFMAG) != 0) return;
  sections_ = at<Elf64_Shdr>(head[0].e_shoff, head[0].e_shnum);
  if (head[0].e_shstrndx < sections_.size()) names_ = content<char>(sections_[head[0].e_shstrndx]);
}

ElfFile::~ElfFile() {
  if (!content_.empty()) munmap(const_cast<char*>(content_.data()), content_.size());
}

const Elf64_Shdr* ElfFile::section(std::string_view name) const {
  const auto found = std::ranges::find_if(
      sections_, [&](const Elf64_Shdr& section) { return text_at(names_, section.sh_name) == name; });
  return found == sections_.end() ? nullptr : &*found;
}

const Elf64_Shdr* ElfFile::section(std::uint32_t type) const {
  const auto found = std::ranges::find(sections_, type, &Elf64_Shdr::sh_type);
  return found == sections_.end() ? nullptr : &*found;
}

std::string_view text_at(std::span<const char> texts, std::size_t offset) {
  const auto begin = texts.subspan(std::min(offset, texts.size()));
  const auto end = std::find(begin.begin(), begin.end(), '\0');
  return {begin.data(), static_cast<std::size_t>(end - begin.begin())};
}

}  // namespace cachalot::simulator
