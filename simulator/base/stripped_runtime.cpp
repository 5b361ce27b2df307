// A CUDA runtime that a library has linked in and that has no symbols any more.
//
// Each function of the runtime hands its own name to tools that trace calls (CUPTI), so that its code has the address of that text;
// and tables for exceptions, which stay in a stripped file, say where functions begin. Functions that tools do not trace are not
// found: those by which nvcc's code registers its kernels. So a library that has kernels of its own is left as it is.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "simulator/base/elf_file.h"
#include "simulator/base/static_runtimes.h"

namespace cachalot::simulator {
namespace {

// A function that came with CUDA 12; older runtimes are not simulated.
constexpr std::string_view kOfCuda12{"\0cudaGraphInstantiateWithParams\0", 32};
constexpr std::size_t kLeastFunctions = 300;  // of 407 in CUDA 12.0: fewer are a program's own table of names

std::size_t position_of(std::span<const char> content, std::size_t from, std::string_view text) {
  const void* found = memmem(content.data() + from, content.size() - from, text.data(), text.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - content.data());
}

bool contains(std::span<const char> content, std::string_view text) {
  return position_of(content, 0, text) != text.npos;
}

// A static runtime loads the driver by name. A library that is linked with a shared one names that.
bool may_have_runtime(const ElfFile& file) {
  if (file.section(SHT_SYMTAB) != nullptr || file.section(".nv_fatbin") != nullptr) return false;
  const Elf64_Shdr* const names = file.section(".dynstr");
  if (names == nullptr) return false;
  const auto imported = file.content<char>(*names);
  return contains(imported, {"\0dlsym\0", 7}) && !contains(imported, "libcudart");
}

// A name in the file's constants, by its address.
struct RuntimeName {
  std::uint64_t address;
  std::string_view text;
};

// In the order of their addresses.
std::vector<RuntimeName> names_in(const ElfFile& file, const Elf64_Shdr& constants) {
  const auto content = file.content<char>(constants);
  std::vector<RuntimeName> names;
  if (!contains(content, kOfCuda12)) return names;
  for (std::size_t at = position_of(content, 0, {"\0cuda", 5}); at != std::string_view::npos;
       at = position_of(content, at + 1, {"\0cuda", 5})) {
    const std::string_view text = text_at(content, at + 1);
    const auto is_of_name = [](unsigned char letter) { return std::isalnum(letter) != 0 || letter == '_'; };
    if (text.size() > 4 && std::isupper(static_cast<unsigned char>(text[4])) != 0 &&
        std::ranges::all_of(text, is_of_name))
      names.push_back({constants.sh_addr + at + 1, text});
  }
  return names;
}

// The begins of functions: the table of .eh_frame_hdr, by which exceptions find frames.
class FunctionStarts {
 public:
  explicit FunctionStarts(const ElfFile& file) {
    struct Entry {
      std::int32_t function;  // both from the begin of the section
      std::int32_t frame;
    };
    constexpr unsigned char kUsual[4] = {1, 0x1b, 0x03, 0x3b};  // version 1, and the encodings that all linkers choose
    const Elf64_Shdr* const section = file.section(".eh_frame_hdr");
    if (section == nullptr) return;
    const auto content = file.content<char>(*section);
    constexpr std::size_t kHeadBytes = 12;
    std::uint32_t count = 0;
    if (content.size() < kHeadBytes || std::memcmp(content.data(), kUsual, sizeof(kUsual)) != 0) return;
    std::memcpy(&count, content.data() + 8, sizeof(count));
    count = std::min(count, static_cast<std::uint32_t>((content.size() - kHeadBytes) / sizeof(Entry)));
    starts_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      Entry entry{};
      std::memcpy(&entry, content.data() + kHeadBytes + i * sizeof(Entry), sizeof(entry));
      starts_.push_back(section->sh_addr + static_cast<std::uint64_t>(std::int64_t{entry.function}));
    }
    std::ranges::sort(starts_);
  }

  // Returns the begin of the function that the address lies in; 0 before the first one.
  std::uint64_t before(std::uint64_t address) const {
    const auto next = std::ranges::upper_bound(starts_, address);
    return next == starts_.begin() ? 0 : *std::prev(next);
  }

 private:
  std::vector<std::uint64_t> starts_;
};

// The function that takes the address of a name; 0 if several do: each function of the runtime takes its own.
struct NameUse {
  std::uint64_t function = 0;
  bool is_used = false;
};

// Reads a function's code in order, and finds the addresses that it takes.
#if defined(__x86_64__)

class AddressReader {
 public:
  static constexpr std::size_t kBytes = 7;  // that are read of an instruction
  static constexpr std::size_t kStep = 1;   // between begins of instructions

  // lea, with the address from the instruction's end on: 48 or 4c, 8d, and a register with the mode 00...101.
  std::optional<std::uint64_t> taken_at(const unsigned char* code, std::uint64_t address) {
    if ((code[0] != 0x48 && code[0] != 0x4c) || code[1] != 0x8d || (code[2] & 0xc7) != 0x05) return std::nullopt;
    std::int32_t distance = 0;
    std::memcpy(&distance, code + 3, sizeof(distance));
    return address + kBytes + static_cast<std::uint64_t>(std::int64_t{distance});
  }
};

#elif defined(__aarch64__)

class AddressReader {
 public:
  static constexpr std::size_t kBytes = 4;
  static constexpr std::size_t kStep = 4;

  // adrp, which has the page of 4 KiB, and adds: one of the rest to the page, or two by way of an address that several constants
  // are near to. Other instructions may stand between them.
  std::optional<std::uint64_t> taken_at(const unsigned char* code, std::uint64_t address) {
    std::uint32_t instruction = 0;
    std::memcpy(&instruction, code, sizeof(instruction));
    Register& target = registers_[instruction & 31];
    if ((instruction & 0x9f000000) == 0x90000000) {  // adrp: 1, two low bits, 10000, nineteen high bits, the register
      const auto high = static_cast<std::int32_t>(instruction << 8) >> 13;
      const std::int64_t pages = std::int64_t{high} * 4 + (instruction >> 29 & 3);
      target = {(address & ~kPageMask) + static_cast<std::uint64_t>(pages * 4096), address};
      return std::nullopt;
    }
    if ((instruction & 0xffc00000) != 0x91000000) return std::nullopt;  // add of twelve bits: them, source, target
    const Register source = registers_[instruction >> 5 & 31];
    if (source.set_at == 0 || address - source.set_at > kFarthest) return std::nullopt;
    target = {source.value + (instruction >> 10 & kPageMask), address};
    return target.value;
  }

 private:
  static constexpr std::uint64_t kPageMask = 4095;
  static constexpr std::uint64_t kFarthest = 1024;  // a register that was set before is another function's
  struct Register {
    std::uint64_t value = 0;
    std::uint64_t set_at = 0;
  };
  Register registers_[32];
};

#endif

std::vector<NameUse> uses_of(const std::vector<RuntimeName>& names, const ElfFile& file, const Elf64_Shdr& code) {
  const FunctionStarts starts(file);
  const auto content = file.content<unsigned char>(code);
  std::vector<NameUse> uses(names.size());
  AddressReader reader;
  for (std::size_t at = 0; at + AddressReader::kBytes <= content.size(); at += AddressReader::kStep) {
    const auto taken = reader.taken_at(content.data() + at, code.sh_addr + at);
    if (!taken || *taken < names.front().address || *taken > names.back().address) continue;
    const auto name = std::ranges::lower_bound(names, *taken, {}, &RuntimeName::address);
    if (name->address != *taken) continue;
    NameUse& use = uses[static_cast<std::size_t>(name - names.begin())];
    use.function = use.is_used ? 0 : starts.before(code.sh_addr + at);
    use.is_used = true;
  }
  return uses;
}

}  // namespace

std::vector<RuntimeFunction> functions_of_stripped_runtime(const ElfFile& file) {
  std::vector<RuntimeFunction> found;
  if (!may_have_runtime(file)) return found;
  const Elf64_Shdr* const constants = file.section(".rodata");
  const Elf64_Shdr* const code = file.section(".text");
  if (constants == nullptr || code == nullptr) return found;
  const std::vector<RuntimeName> names = names_in(file, *constants);
  if (names.size() < kLeastFunctions) return found;
  const std::vector<NameUse> uses = uses_of(names, file, *code);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (uses[i].function != 0) found.push_back({names[i].text, uses[i].function});
  }
  // A function that takes several names belongs to a program.
  std::ranges::sort(found, {}, &RuntimeFunction::offset);
  std::vector<RuntimeFunction> own;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool is_first = i == 0 || found[i - 1].offset != found[i].offset;
    const bool is_last = i + 1 == found.size() || found[i + 1].offset != found[i].offset;
    if (is_first && is_last) own.push_back(found[i]);
  }
  if (own.size() < kLeastFunctions) own.clear();
  return own;
}

}  // namespace cachalot::simulator
