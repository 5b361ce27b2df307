#include "cachalot/version.h"

#include "cachalot/same_version.h"

CACHALOT_BEGIN

const char* version() { return CACHALOT_VERSION_STRING; }

CACHALOT_END

namespace cachalot::headers_and_library_have_one_version {

const char CACHALOT_SYMBOL_OF_VERSION(CACHALOT_VERSION_MAJOR, CACHALOT_VERSION_MINOR) = 0;

}  // namespace cachalot::headers_and_library_have_one_version
