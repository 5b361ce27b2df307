/// @file
/// The check of the C++ standard. Every public C++ header includes this one first.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "cachalot needs C++17 or newer: compile with -std=c++17 (in C, include cachalot/c_api.h)"
#endif

#include "cachalot/version.h"
