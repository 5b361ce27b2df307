/// @file
/// The check that a program's headers and its library are of one version.
///
/// Every file that includes this header needs a symbol that has the version of its headers in its
/// name, and the library of that version alone defines it. A program that mixes two versions is
/// refused by its linker: "undefined reference to
/// `cachalot::headers_and_library_have_one_version::v0_1'". The patch number is not in the name: a
/// patch changes no interface, so a program runs with the shared library of any patch.
#pragma once

#include "cachalot/require_cpp17.h"

#include "cachalot/version.h"

/// Expands to the symbol of a version: v0_1.
#define CACHALOT_SYMBOL_OF_VERSION_(major, minor) v##major##_##minor
/// Expands to the symbol of a version, whose numbers are macros.
#define CACHALOT_SYMBOL_OF_VERSION(major, minor) CACHALOT_SYMBOL_OF_VERSION_(major, minor)

// NOLINTBEGIN(readability-identifier-naming): it is the text of the linker's message
namespace cachalot::headers_and_library_have_one_version {

/// The library defines this symbol.
[[gnu::visibility("default")]] extern const char CACHALOT_SYMBOL_OF_VERSION(CACHALOT_VERSION_MAJOR,
                                                                            CACHALOT_VERSION_MINOR);

// Code that is loaded by the library, and not linked with it, defines CACHALOT_WITHOUT_LIBRARY.
#ifndef CACHALOT_WITHOUT_LIBRARY
/// Each file needs the symbol.
[[gnu::used]] static const char* const needed =
    &CACHALOT_SYMBOL_OF_VERSION(CACHALOT_VERSION_MAJOR, CACHALOT_VERSION_MINOR);
#endif

}  // namespace cachalot::headers_and_library_have_one_version
// NOLINTEND(readability-identifier-naming)
