/** @file
 * The version of cachalot: of these headers, and of the library that a program runs with.
 * C and C++ programs may include this header; cachalot/c_api.h does.
 *
 * Versions follow semantic versioning. As long as the major number is 0, each minor version may
 * change interfaces, and a patch only corrects mistakes. */
#ifndef CACHALOT_VERSION_H_
#define CACHALOT_VERSION_H_

#define CACHALOT_VERSION_MAJOR 0 /**< The first number of the version. */
#define CACHALOT_VERSION_MINOR 1 /**< The second number of the version, 0 to 99. */
#define CACHALOT_VERSION_PATCH 0 /**< The third number of the version, 0 to 99. */

/** The headers' version as one integer that grows with each version, for the preprocessor:
 * 10000 x major + 100 x minor + patch. 0.1.0 is 100, 1.2.3 is 10203. */
#define CACHALOT_VERSION \
  (CACHALOT_VERSION_MAJOR * 10000 + CACHALOT_VERSION_MINOR * 100 + CACHALOT_VERSION_PATCH)

/** The headers' version as text: "0.1.0". */
#define CACHALOT_VERSION_STRING "0.1.0"

#ifdef __cplusplus
namespace cachalot {

/** Returns the version of the library, "0.1.0". It differs from CACHALOT_VERSION_STRING if the
 * program was compiled with the headers of another version. Part of cachalot::core; programs that
 * use libcachalot.so call cachalot_version().
 * Thread safety: any thread, at any time. */
const char* version();

}  // namespace cachalot
#endif

#endif /* CACHALOT_VERSION_H_ */
