#include "simulator/base/static_runtimes.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/format.h"
#include "simulator/base/elf_file.h"
#include "simulator/base/redirection.h"
#include "simulator/base/report.h"

namespace cachalot::simulator {
namespace {

struct Symbols {
  std::span<const Elf64_Sym> symbols;
  std::span<const char> names;

  std::string_view name(const Elf64_Sym& symbol) const { return text_at(names, symbol.st_name); }
};

// The symbols that the linker leaves in a file unless it is stripped.
Symbols symbols_of(const ElfFile& file) {
  const Elf64_Shdr* const section = file.section(SHT_SYMTAB);
  if (section == nullptr || section->sh_link >= file.sections().size()) return {};
  return {file.content<Elf64_Sym>(*section), file.content<char>(file.sections()[section->sh_link])};
}

// ---- Functions ------------------------------------------------------------------------------------------------------

// A jump to the address that follows it; and the alignment of every function of the runtime.
#if defined(__x86_64__)
constexpr std::array<unsigned char, 6> kJump{0xff, 0x25, 0, 0, 0, 0};  // jmp *0(%rip)
constexpr std::uint64_t kFunctionAlignment = 16;
#elif defined(__aarch64__)
constexpr std::array<unsigned char, 8> kJump{0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6};  // ldr x16, .+8; br x16
constexpr std::uint64_t kFunctionAlignment = 8;
#endif
constexpr std::size_t kJumpBytes = kJump.size() + sizeof(void*);

// Returns true if a jump fits into the function and the bytes that align the next one.
bool has_room_for_jump(const Elf64_Sym& function) {
  const bool is_aligned = function.st_value % kFunctionAlignment == 0;
  const std::uint64_t unit = is_aligned ? kFunctionAlignment : 1;
  return (function.st_size + unit - 1) / unit * unit >= kJumpBytes;
}

bool is_runtime_function(std::string_view name) { return name.starts_with("cuda") || name.starts_with("__cuda"); }

// The functions by which compiled code registers its kernels and variables, before main or when its library is loaded: nvcc makes
// one for each of its files, "static void __sti____cudaRegisterAll()".
bool is_constructor(std::string_view name) { return name.find("__sti____cudaRegisterAll") != name.npos; }

constexpr std::string_view kRegistration = "__cudaRegisterFatBinary";

bool mentions(std::span<const char> names, std::string_view name) {
  return memmem(names.data(), names.size(), name.data(), name.size()) != nullptr;
}

// The functions of the runtime in a file; none where it has no runtime of its own. A name may be a program's own function,
// but no program has these two.
std::vector<RuntimeFunction> runtime_functions(const Symbols& all) {
  std::vector<RuntimeFunction> found;
  if (!mentions(all.names, kRegistration)) return found;
  for (const Elf64_Sym& symbol : all.symbols) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    const std::string_view name = all.name(symbol);
    if (!is_runtime_function(name)) continue;
    if (has_room_for_jump(symbol)) found.push_back({name, symbol.st_value});
  }
  const auto has = [&](std::string_view name) {
    return std::any_of(found.begin(), found.end(),
                       [&](const RuntimeFunction& function) { return function.name == name; });
  };
  if (!has("cudaGetExportTable") || !has(kRegistration)) found.clear();
  return found;
}

std::vector<std::uint64_t> constructors(const Symbols& all) {
  std::vector<std::uint64_t> found;
  for (const Elf64_Sym& symbol : all.symbols) {
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && is_constructor(all.name(symbol))) found.push_back(symbol.st_value);
  }
  return found;
}

// cudaThreadExit and its kin are gone since CUDA 13.
bool is_of_cuda_12(const std::vector<RuntimeFunction>& functions) {
  return std::any_of(functions.begin(), functions.end(),
                     [](const RuntimeFunction& function) { return function.name == "cudaThreadExit"; });
}

void* simulated(std::string_view name, bool cuda_12) {
  const std::string plain(name);
  if (void* old_meaning = cuda_12 ? own_function(("cudart12_" + plain).c_str()) : nullptr) return old_meaning;
  return own_function(plain.c_str());
}

bool make_writable(std::uintptr_t address, bool writable) {
  static const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = address & ~(page_bytes - 1);
  const std::uintptr_t end = (address + kJumpBytes + page_bytes - 1) & ~(page_bytes - 1);
  return mprotect(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_EXEC | (writable ? PROT_WRITE : 0)) ==
         0;
}

// No thread is in the function: of the library, at most constructors have been called.
void redirect(std::uintptr_t function, void* to) {
  if (!make_writable(function, true)) return;
  std::memcpy(reinterpret_cast<void*>(function), kJump.data(), kJump.size());
  std::memcpy(reinterpret_cast<void*>(function + kJump.size()), &to, sizeof(to));
  const auto begin = reinterpret_cast<char*>(function);
  __builtin___clear_cache(begin, begin + kJumpBytes);
  make_writable(function, false);
}

// ---- Libraries ------------------------------------------------------------------------------------------------------

struct Library {
  std::uintptr_t start;
  std::string path;
  bool operator<(const Library& other) const { return std::tie(start, path) < std::tie(other.start, other.path); }
};

// This library has all those functions, too; and NCCL and NVSHMEM, which wait for what their kernels do, are to find no GPU.
bool is_left_alone(const Library& library) {
  static const auto own_start = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&is_left_alone), &info);
    return reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  }();
  const std::string_view name = file_name(library.path);
  return library.start == own_start || name.starts_with("libnccl") || name.starts_with("libnvshmem") ||
         name.starts_with("nvshmem_");
}

// NVIDIA's compilers ask for a GPU when they are loaded, and do without; so does cuDNN when it plans.
bool needs_no_gpu(std::string_view path) {
  const std::string_view name = file_name(path);
  return name.starts_with("libnvrtc") || name.starts_with("libnvJitLink") || name.starts_with("libnvvm") ||
         name.starts_with("libcudnn");
}

// Registrations with the library's own runtime are repeated with the simulated one.
void hook(const Library& library, bool before_registration) {
  const ElfFile file(library.path.c_str());
  const Symbols symbols = symbols_of(file);
  std::vector<RuntimeFunction> functions = runtime_functions(symbols);
  if (functions.empty() && !needs_no_gpu(library.path)) functions = functions_of_stripped_runtime(file);
  if (functions.empty()) return;
  const bool cuda_12 = is_of_cuda_12(functions);
  for (const RuntimeFunction& function : functions) {
    if (void* to = simulated(function.name, cuda_12)) redirect(library.start + function.offset, to);
  }
  if (before_registration) return;
  for (const std::uint64_t offset : constructors(symbols)) reinterpret_cast<void (*)()>(library.start + offset)();
}

// The loaded objects of the process: the libraries, the program first, and the numbers of loads and unloads.
struct Loaded {
  std::vector<Library> libraries;
  std::pair<unsigned long long, unsigned long long> changes{};
};

std::pair<unsigned long long, unsigned long long> changes() {
  std::pair<unsigned long long, unsigned long long> counted;
  const auto count = [](dl_phdr_info* info, std::size_t, void* result) -> int {
    *static_cast<decltype(counted)*>(result) = {info->dlpi_adds, info->dlpi_subs};
    return 1;  // all libraries have the same
  };
  dl_iterate_phdr(count, &counted);
  return counted;
}

Loaded loaded() {
  Loaded result;
  const auto add = [](dl_phdr_info* info, std::size_t, void* data) -> int {
    auto& all = *static_cast<Loaded*>(data);
    all.changes = {info->dlpi_adds, info->dlpi_subs};
    all.libraries.push_back({info->dlpi_addr, all.libraries.empty() ? "/proc/self/exe" : info->dlpi_name});
    return 0;
  };
  dl_iterate_phdr(add, &result);
  return result;
}

struct Hooked {
  std::atomic_flag is_busy;  // one thread at a time reads and writes the rest
  std::set<Library> seen;
  std::pair<unsigned long long, unsigned long long> changes{};
};

// Never destroyed: static destructors of the program may still load libraries.
Hooked& hooked() {
  static auto& instance = *new Hooked;
  return instance;
}

bool started = false;  // the constructor below has run: what calls dlsym before that allocates no memory from here

void hook_what_is_new(Hooked& all, bool program_is_new) {
  Loaded now = loaded();
  std::set<Library> seen;
  for (const Library& library : now.libraries) {
    const bool is_program = &library == &now.libraries.front();
    if (!all.seen.contains(library) && !is_left_alone(library)) hook(library, is_program && program_is_new);
    seen.insert(library);
  }
  all.seen = std::move(seen);
  all.changes = now.changes;
}

void hook_new(bool program_is_new) noexcept {
  Hooked& all = hooked();
  // Never waits: the thread that is at it may wait for the dynamic linker's lock, which this one may have. Nor does a call of
  // dlsym from here begin again.
  if (all.is_busy.test_and_set(std::memory_order_acquire)) return;
  if (changes() != all.changes) hook_what_is_new(all, program_is_new);
  all.is_busy.clear(std::memory_order_release);
}

// The dynamic linker runs it before the program's own constructors, which register the program's kernels.
__attribute__((constructor)) void hook_the_program() {
  started = true;
  hook_new(true);
}

}  // namespace

void hook_static_runtimes() {
  if (started) hook_new(false);
}

void note_hidden_runtime(const void* address) {
  Dl_info info{};
  const std::string_view library = dladdr(address, &info) != 0 ? info.dli_fname : "the program";
  if (needs_no_gpu(library)) return;
  if (file_name(library).starts_with("libcudart.so"))
    return note_once(formatted("{} is not simulated and finds no GPU: runtimes of CUDA 12 and 13 are", library));
  note_once(formatted(
      "{} has kernels and a CUDA runtime of its own (libcudart_static) without symbols, which finds no GPU: link "
      "it with -cudart shared, or do not strip it",
      library));
}

}  // namespace cachalot::simulator
