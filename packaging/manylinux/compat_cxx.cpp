// Functions of newer versions of libstdc++ that GCC's headers refer to, for systems whose libstdc++ does not have them. Each
// is hidden: nothing outside of what it is linked into sees it.

#include <unwind.h>

#include <cxxabi.h>

#include <new>
#include <sstream>

// GCC 9's and GCC 11's functions of streams. The linker hides them (--exclude-libs): std's names are visible otherwise.
template std::stringbuf::basic_stringbuf();
template std::istringstream::basic_istringstream();
template std::ostringstream::basic_ostringstream();
template std::stringstream::basic_stringstream();
template std::string std::stringbuf::str() const&;

#pragma GCC visibility push(hidden)

namespace std {

// GCC 11.
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std

// GCC 12: the count of an exception_ptr, which headers call since then. The libraries have none that could be called instead:
// theirs come back here where headers have defined the functions around it. The fields before an exception object are part of
// GCC's C++ interface (libsupc++/unwind-cxx.h) and have not changed since exceptions are counted.

namespace {

struct ExceptionPointer {
  void* exception;
};

struct ExceptionHeader {
  int reference_count;
  alignas(_Unwind_Exception) const std::type_info* type;
  void (*destructor)(void*);
  void* former[2];
  void* next;
  int handler_count;
  int handler_switch;
  const void* of_handler[4];
  _Unwind_Exception unwind_header;

  static ExceptionHeader& of(void* exception) { return static_cast<ExceptionHeader*>(exception)[-1]; }
};
static_assert(sizeof(void*) == 8 && sizeof(ExceptionHeader) == 128);

}  // namespace

extern "C" {

void add_reference(ExceptionPointer* self) noexcept asm("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(ExceptionPointer* self) noexcept {
  if (self->exception == nullptr) return;
  __atomic_add_fetch(&ExceptionHeader::of(self->exception).reference_count, 1, __ATOMIC_ACQ_REL);
}

void release(ExceptionPointer* self) noexcept asm("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(ExceptionPointer* self) noexcept {
  void* const exception = self->exception;
  self->exception = nullptr;
  if (exception == nullptr) return;
  ExceptionHeader& header = ExceptionHeader::of(exception);
  if (__atomic_sub_fetch(&header.reference_count, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (header.destructor != nullptr) header.destructor(exception);
  abi::__cxa_free_exception(exception);
}
}
