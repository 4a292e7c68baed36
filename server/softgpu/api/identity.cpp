// A symbol by which a worker recognizes the software GPU, whatever the path that it was loaded from.

// NOLINTNEXTLINE(readability-identifier-naming): an exported name
extern "C" __attribute__((visibility("default"))) const int gpupool_softgpu_identity = 1;
