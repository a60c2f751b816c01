// What the translation units of the library share: one Entry per kernel, collected before main() by static objects.
#pragma once
#include <cstdint>
#include <vector>

struct Entry {
  const char* name;
  int stages, shared_bytes, threads;
  int (*max_clusters)();
  int (*create)(void** plan, const void* a, const void* b, void* d, int m, int n, int k, int sms, int clusters, int swizzle,
                void* stream);
  int (*launch)(void* plan, void* stream);
  void (*destroy)(void* plan);
};

inline std::vector<Entry>& registry() {
  static std::vector<Entry> entries;
  return entries;
}
