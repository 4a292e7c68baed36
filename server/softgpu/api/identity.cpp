// How a worker tells the software GPU from any other driver library, whatever the path that it was loaded from.

extern "C" __attribute__((visibility("default"))) const int gpupool_softgpu_identity = 1;
