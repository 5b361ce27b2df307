/* The start of a program, as before glibc 2.34.

   glibc 2.34's own start file leaves it to the C library to run the program's constructors; that of a system with an older
   glibc does not, and they would never run. This one hands over a function that runs them, which every glibc calls. */

#include <stddef.h>

typedef void (*function)(int, char**, char**);

extern function __preinit_array_start[] __attribute__((visibility("hidden")));
extern function __preinit_array_end[] __attribute__((visibility("hidden")));
extern function __init_array_start[] __attribute__((visibility("hidden")));
extern function __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void); /* crti.o */

static void run(function* first, function* last, int count, char** arguments, char** environment) {
  for (function* each = first; each != last; ++each) (*each)(count, arguments, environment);
}

__attribute__((used)) static void initialize(int count, char** arguments, char** environment) {
  run(__preinit_array_start, __preinit_array_end, count, arguments, environment);
  _init();
  run(__init_array_start, __init_array_end, count, arguments, environment);
}

/* The dynamic linker runs destructors. */
__attribute__((used)) static void finalize(void) {}

/* The kernel enters here: the stack holds the arguments, and rdx or x0 a function of the dynamic linker to run at exit.
   __libc_start_main(main, count, arguments, initialize, finalize, at_exit, end of the stack) does not return. */
#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".globl _start\n"
    ".type _start,@function\n"
    "_start:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined rip\n"
    "  xor %ebp, %ebp\n"
    "  mov %rdx, %r9\n"
    "  pop %rsi\n"
    "  mov %rsp, %rdx\n"
    "  and $-16, %rsp\n"
    "  push %rax\n"
    "  push %rsp\n"
    "  lea finalize(%rip), %r8\n"
    "  lea initialize(%rip), %rcx\n"
    "  mov main@GOTPCREL(%rip), %rdi\n"
    "  call *__libc_start_main@GOTPCREL(%rip)\n"
    "  hlt\n"
    "  .cfi_endproc\n"
    ".size _start,.-_start\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".globl _start\n"
    ".type _start,@function\n"
    "_start:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined x30\n"
    "  hint #34\n" /* bti c */
    "  mov x29, #0\n"
    "  mov x30, #0\n"
    "  mov x5, x0\n"
    "  ldr x1, [sp]\n"
    "  add x2, sp, #8\n"
    "  mov x6, sp\n"
    "  adrp x4, finalize\n"
    "  add x4, x4, :lo12:finalize\n"
    "  adrp x3, initialize\n"
    "  add x3, x3, :lo12:initialize\n"
    "  adrp x0, :got:main\n"
    "  ldr x0, [x0, :got_lo12:main]\n"
    "  bl __libc_start_main\n"
    "  brk #1\n"
    "  .cfi_endproc\n"
    ".size _start,.-_start\n");
#else
#error "programs of a wheel start on x86-64 and aarch64 alone"
#endif
