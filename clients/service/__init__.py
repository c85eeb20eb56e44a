# SPDX-License-Identifier: Apache-2.0
"""The silo service: one long-lived process per silo, which keeps torch, model, data and head between messages.

Flower starts a new process for every message. That process only asks (``proxy``); the service answers (``host``).
They meet at a Unix socket in the silo's private folder (``folder``), prove to one another that they hold its key and
exchange bounded JSON (``channel``, ``messages``); arrays lie in shared memory, whose file travels along (``memory``).
"""
