/* Functions of newer versions of glibc that GCC's own libraries and the headers of this machine refer to, for systems that
   do not have them. Each is hidden: nothing outside of what it is linked into sees it. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Functions of the C library that its headers no longer have. */
extern int __xstat(int, const char*, struct stat*);
extern int __lxstat(int, const char*, struct stat*);
extern int __fxstat(int, int, struct stat*);
extern int __fxstatat(int, int, const char*, struct stat*, int);
extern ssize_t getrandom(void*, size_t, unsigned);

#pragma GCC visibility push(hidden)

/* glibc 2.32: whether the process has one thread. No is always right, and costs an atomic operation. */
char __libc_single_threaded = 0;

/* glibc 2.33. Until then the headers had them call these, with the version of the structure. On 64-bit systems `struct
   stat64` is `struct stat`. */
#if defined(__x86_64__)
enum { STRUCTURE_VERSION = 1 };
#elif defined(__aarch64__)
enum { STRUCTURE_VERSION = 0 };
#endif
int stat(const char* path, struct stat* out) { return __xstat(STRUCTURE_VERSION, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(STRUCTURE_VERSION, path, out); }
int fstat(int file, struct stat* out) { return __fxstat(STRUCTURE_VERSION, file, out); }
int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return __fxstatat(STRUCTURE_VERSION, folder, path, out, flags);
}
int stat64(const char*, struct stat64*) __attribute__((alias("stat")));
int lstat64(const char*, struct stat64*) __attribute__((alias("lstat")));
int fstat64(int, struct stat64*) __attribute__((alias("fstat")));
int fstatat64(int, const char*, struct stat64*, int) __attribute__((alias("fstatat")));

/* glibc 2.30. */
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* glibc 2.36. GCC's std::random_device may use it. */
unsigned arc4random(void) {
  unsigned value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

/* glibc 2.30. std::condition_variable waits by it until a time of the steady clock. Where the C library has none, the time
   is told by the system's clock, as GCC's own library does then: a change of that clock changes the wait. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  typedef int (*wait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static _Atomic(wait) systems;
  static _Atomic int is_known;
  if (!is_known) {
    systems = (wait)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    is_known = 1;
  }
  const wait known = systems;
  if (known != NULL) return known(condition, mutex, clock, until);
  struct timespec now, real;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0) return EINVAL;
  real.tv_sec += until->tv_sec - now.tv_sec;
  real.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += 1000000000;
    --real.tv_sec;
  } else if (real.tv_nsec >= 1000000000) {
    real.tv_nsec -= 1000000000;
    ++real.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &real);
}

/* glibc 2.35. GCC's unwinder, where it is linked in, asks it for the unwind table of the code at an address. */
struct search {
  uintptr_t code;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* object, size_t size, void* data) {
  struct search* const search = data;
  const ElfW(Phdr)* table = NULL;
  int is_here = 0;
  (void)size;
  for (const ElfW(Phdr)* part = object->dlpi_phdr; part != object->dlpi_phdr + object->dlpi_phnum; ++part) {
    if (part->p_type == PT_GNU_EH_FRAME) table = part;
    if (part->p_type != PT_LOAD) continue;
    const uintptr_t begin = object->dlpi_addr + part->p_vaddr;
    if (search->code < begin || search->code >= begin + part->p_memsz) continue;
    is_here = 1;
    search->found->dlfo_map_start = (void*)begin;
    search->found->dlfo_map_end = (void*)(begin + part->p_memsz);
  }
  if (!is_here || table == NULL) return is_here;
  search->found->dlfo_eh_frame = (void*)(object->dlpi_addr + table->p_vaddr);
  return 2;
}

int _dl_find_object(void* code, struct dl_find_object* found) {
  struct search search = {(uintptr_t)code, found};
  found->dlfo_flags = 0;
  found->dlfo_link_map = NULL;
  return dl_iterate_phdr(look, &search) == 2 ? 0 : -1;
}
