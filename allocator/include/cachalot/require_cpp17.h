/// @file
/// The public C++ headers include this one first: an older compiler is told what it lacks.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 201703L
#error \
    "cachalot needs C++17 or newer: compile with -std=c++17 (programs in C include cachalot/c_api.h)"
#endif
