// An ELF file as it lies on disk: what its sections hold, also those that are not loaded.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot::simulator {

// The file is mapped as long as the object lives; it is empty where the file cannot be read or is not an ELF file. Spans and texts are
// of the mapping.
class ElfFile {
 public:
  explicit ElfFile(const char* path);
  ~ElfFile();
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  std::span<const Elf64_Shdr> sections() const { return sections_; }
  // Null if there is none of this name, or of this type.
  const Elf64_Shdr* section(std::string_view name) const;
  const Elf64_Shdr* section(std::uint32_t type) const;
  // Elements of a section; none where they are not in the file.
  template <typename Element>
  std::span<const Element> content(const Elf64_Shdr& section) const {
    return at<Element>(section.sh_offset, section.sh_size / sizeof(Element));
  }

 private:
  template <typename Element>
  std::span<const Element> at(std::uint64_t offset, std::uint64_t count) const {
    if (offset > content_.size() || count > (content_.size() - offset) / sizeof(Element)) return {};
    return {reinterpret_cast<const Element*>(content_.data() + offset), count};
  }

  std::span<const char> content_;
  std::span<const Elf64_Shdr> sections_;
  std::span<const char> names_;  // of sections
};

// Returns the text that begins at an offset; it ends with a zero byte in any whole file.
std::string_view text_at(std::span<const char> texts, std::size_t offset);

}  // namespace cachalot::simulator
