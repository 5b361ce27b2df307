/* Runs a program for Arm under qemu-user wherever a test, itself emulated, starts it by its name, which qemu-user does not do.

   A copy of this one has the program's name, and the program lies beside it with the ending .aarch64. Linked statically, so that the
   variables of the dynamic linker, which are for the program, do not concern it; nor do they qemu. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char kEnding[] = ".aarch64";

static const char* program(void) {
  static char path[PATH_MAX + sizeof(kEnding)];
  const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
  if (length <= 0) return NULL;
  strcpy(path + length, kEnding);
  return path;
}

int main(int count, char** arguments) {
  static const char* const kForTheProgram[] = {"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_BIND_NOW"};
  enum { VARIABLES = sizeof(kForTheProgram) / sizeof(*kForTheProgram), OWN = 4 + 2 * VARIABLES + 1 };
  const char** command = calloc(OWN + (size_t)count, sizeof(*command));
  const char* path = program();
  if (command == NULL || path == NULL || count == 0) return 127;
  size_t size = 0;
  command[size++] = "qemu-aarch64";
  command[size++] = "-0";
  command[size++] = arguments[0];
  for (size_t i = 0; i < VARIABLES; ++i) {
    const char* value = getenv(kForTheProgram[i]);
    if (value == NULL) continue;
    const size_t bytes = strlen(kForTheProgram[i]) + strlen(value) + 2;
    char* variable = malloc(bytes);
    if (variable == NULL) return 127;
    snprintf(variable, bytes, "%s=%s", kForTheProgram[i], value);
    command[size++] = "-E";
    command[size++] = variable;
    unsetenv(kForTheProgram[i]);
  }
  command[size++] = path;
  for (int i = 1; i < count; ++i) command[size++] = arguments[i];
  execvp(command[0], (char**)command);
  perror(command[0]);
  return 127;
}
