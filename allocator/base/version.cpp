#include "cachalot/version.h"

CACHALOT_BEGIN

const char* version() { return CACHALOT_VERSION_STRING; }

CACHALOT_END
