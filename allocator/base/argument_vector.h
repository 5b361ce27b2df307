// The arguments of a program, as execve and posix_spawn take them.
#pragma once

#include <string>
#include <vector>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Pointers to the words, with a null pointer behind the last: valid while the words are as they are.
inline std::vector<char*> argument_vector(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

CACHALOT_END
