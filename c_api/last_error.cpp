#include "c_api/last_error.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "base/environment.h"
#include "cachalot/errors.h"

namespace cachalot {

constinit thread_local const char* last_error [[gnu::tls_model("initial-exec")]] = "";

namespace {

// The code of the last failure, while last_error has a text.
constinit thread_local int last_code [[gnu::tls_model("initial-exec")]] = CACHALOT_OK;

// The text behind last_error. Destructors of other thread-locals may still fail when it is gone.
struct Message {
  std::string text;
  ~Message() { gone = true; }
  static constinit inline thread_local bool gone = false;
};

void set_last_error(const char* text) noexcept {
  static thread_local Message message;
  last_error = "an error, which could not be kept: the thread ends or the host has no memory left";
  if (Message::gone) return;
  try {
    message.text = text;
    last_error = message.text.c_str();
  } catch (const std::bad_alloc&) {
  }
}

int fail(int code, const char* message) noexcept {
  set_last_error(message);
  return last_code = code;
}

}  // namespace

int keep_exception() noexcept {
  try {
    throw;
  } catch (const BadEnvironment& error) {
    return fail(CACHALOT_E_ENVIRONMENT, error.what());
  } catch (const InvalidArgument& error) {
    return fail(CACHALOT_E_INVALID_ARGUMENT, error.what());
  } catch (const OutOfMemory& error) {
    return fail(CACHALOT_E_OUT_OF_MEMORY, error.what());
  } catch (const CudaError& error) {
    return fail(CACHALOT_E_CUDA, error.what());
  } catch (
      const std::bad_alloc&) {  // no memory for a message either; glibc ends a process that has none for a thread-local
    last_error = "std::bad_alloc: the host has no memory left; the call has changed nothing";
    return last_code = CACHALOT_E_INTERNAL;
  } catch (const std::exception& error) {
    return fail(CACHALOT_E_INTERNAL, error.what());
  } catch (...) {
    return fail(CACHALOT_E_INTERNAL, "unknown exception");
  }
}

char* copy_of(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace cachalot

void cachalot_string_free(char* string) { std::free(string); }

const char* cachalot_last_error(void) { return cachalot::last_error; }

int cachalot_last_error_code(void) { return *cachalot::last_error == '\0' ? CACHALOT_OK : cachalot::last_code; }
