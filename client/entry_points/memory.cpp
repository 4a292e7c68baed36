// clang-format off
#include "client/entry_points/entry_point.h"
#include "protocol/calls/table/memory.def"
